"""What people read: tables, documents, pictures."""

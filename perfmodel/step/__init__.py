"""Steps and requests: work priced, and questions answered."""

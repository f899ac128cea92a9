"""What a profile of operators says: shares, critical path, what-if, gaps to the roofline, suggestions."""

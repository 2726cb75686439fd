"""What is read: records, where they come from, and how files become records."""

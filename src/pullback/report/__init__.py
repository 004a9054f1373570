"""What people and machines read: writers of reports, which know nothing but findings and rules."""

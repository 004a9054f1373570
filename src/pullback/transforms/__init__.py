"""3. The node under transforms: higher orders."""

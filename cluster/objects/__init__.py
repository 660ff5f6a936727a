"""Objects as others wrote them, read without trusting them, and values of our own kinds."""

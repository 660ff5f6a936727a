"""The page of recommended sizes."""

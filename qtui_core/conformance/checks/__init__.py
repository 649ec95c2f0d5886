"""What runs both sides of a convention, a file for each library, which it imports."""

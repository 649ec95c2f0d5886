"""The app in a browser: who may open it, and the page it is in."""

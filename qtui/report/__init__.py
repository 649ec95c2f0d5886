"""Reports: one document, four faces. Build a `Document`, then give it to `render`."""

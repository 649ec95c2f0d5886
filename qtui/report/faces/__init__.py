"""The faces of a document: text, JSON, Markdown and HTML."""

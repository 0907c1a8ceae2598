"""Plans drawn, as text, JSON, Mermaid and SVG."""

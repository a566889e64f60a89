"""One module per target; each translates a Bundle into files: `render(bundle) -> {path: text}`."""

"""Vision-language-action models: pictures and an instruction in, chunks of actions out."""

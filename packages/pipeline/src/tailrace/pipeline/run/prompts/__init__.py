"""What a run's prompts are made of: files, chat templates, stop tokens, and how sessions begin."""

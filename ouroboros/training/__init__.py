"""How the reference pair was made: corpus, tokenizer, training, polish."""

"""Where models come from: hub ids, folders, GGUF files, the reference pair, distilled drafts."""

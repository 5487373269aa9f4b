"""The Hydra configs of all commands; installed as `ouroboros.conf`."""

"""The numerics lab: experiments on what low precision does to learning, shown by training."""

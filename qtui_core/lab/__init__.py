"""The numerics lab: training experiments that show what low precision does to learning."""

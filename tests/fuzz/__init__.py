"""Inputs that nobody would write, against every door through which something comes in.

What a property says is defined once, here. The suite looks at the same few dozen examples of each in every run;
`make soak` looks at as many others as there is time for.
"""

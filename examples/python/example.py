"""Streams an answer, then scores two continuations of one text.

    TANDEM_LIBRARY=~/.local/lib/libtandem_c.so python3 example.py MODEL "prompt"
"""
import sys

import numpy as np
import tandem


def log_prob(session, first_logits, ids):
    """Sum of the log-probabilities of ids after the session's text, whose last logits are given."""
    logits = np.vstack([first_logits, session.read(ids)[:-1]]).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return log_probs[np.arange(len(ids)), ids].sum()


def main():
    model = tandem.Model(sys.argv[1], draft="ngram", device="cpu", context=1024, sessions=3)
    prompt = model.encode(sys.argv[2])
    with model.session() as session:
        for piece in session.generate(prompt, max_tokens=24):
            print(piece, end="", flush=True)
        print()
    with model.session() as text:
        text.append(prompt[:-1])
        last = text.read(prompt[-1:])
        for ending in (" the stairs.", " purple seven."):
            with text.fork() as copy:
                print(f"{log_prob(copy, last, model.encode(ending, begins=False)):8.2f} {ending}")


if __name__ == "__main__":
    main()

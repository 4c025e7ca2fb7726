"""tandem for Python: models and sessions over libtandem_c, without a build step.

    import tandem
    model = tandem.Model("tiny-16m", draft="ngram", sessions=2)
    with model.session() as session:
        for piece in session.generate("The keeper climbed", max_tokens=40):
            print(piece, end="", flush=True)

Token ids and logits are numpy arrays. The library is looked for in $TANDEM_LIBRARY, then where the
linker looks.
"""
import ctypes as c
import os
import queue
import threading

import numpy as np


class Error(Exception):
    """A failure of the library, with its message and hint."""


class _Options(c.Structure):
    _fields_ = [("cache", c.c_char_p), ("draft", c.c_char_p), ("device", c.c_char_p), ("context", c.c_int64),
                ("sessions", c.c_int), ("set", c.POINTER(c.c_char_p))]


class _Sampling(c.Structure):
    _fields_ = [("max_tokens", c.c_int), ("temperature", c.c_double), ("top_k", c.c_int), ("top_p", c.c_double),
                ("seed", c.c_int64)]


_ON_TOKEN = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int32, c.c_char_p)
_lib = c.CDLL(os.environ.get("TANDEM_LIBRARY", "libtandem_c.so"))
_P, _N = c.c_void_p, c.c_int64
for _name, _result, _arguments in [
        ("error", c.c_char_p, []), ("open", _P, [c.c_char_p, _P]), ("close", None, [_P]), ("vocab", c.c_int, [_P]),
        ("encode", _N, [_P, c.c_char_p, c.c_int, _P, _N]), ("decode", _N, [_P, _P, _N, _P, _N]),
        ("begin", _P, [_P]), ("fork", _P, [_P]), ("restore", _P, [_P, c.c_char_p]),
        ("save", c.c_int, [_P, c.c_char_p]), ("end", None, [_P]), ("append", c.c_int, [_P, _P, _N]),
        ("read", c.c_int, [_P, _P, _N, _P]), ("rewind", c.c_int, [_P, _N]), ("length", _N, [_P]),
        ("generate", _N, [_P, _P, _N, _P, _ON_TOKEN, _P]), ("chat", _N, [_P, c.c_char_p, _P, _ON_TOKEN, _P])]:
    _function = getattr(_lib, "tandem_" + _name)
    _function.restype, _function.argtypes = _result, _arguments


def _call(name, *arguments):
    result = getattr(_lib, "tandem_" + name)(*arguments)
    if result is None or result < 0:
        raise Error(_lib.tandem_error().decode())
    return result


def _ids(ids):
    array = np.ascontiguousarray(ids, dtype=np.int32)
    if array.ndim != 1:
        raise ValueError(f"expected a list of token ids, found an array of {array.ndim} dimensions")
    return array


class Model:
    """A loaded model. `settings` are recipe keys: Model(path, settings={"model.weights": "int8"})."""

    def __init__(self, path, cache=None, draft=None, device=None, context=0, sessions=1, settings=None):
        self._model = None
        texts = [f"{key}={value}".encode() for key, value in (settings or {}).items()]
        text = lambda value: None if value is None else value.encode()
        options = _Options(text(cache), text(draft), text(device), context, sessions,
                           (c.c_char_p * (len(texts) + 1))(*texts, None))
        self._model = _call("open", str(path).encode(), c.byref(options))
        self.vocab = _call("vocab", self._model)

    def close(self):
        model, self._model = self._model, None
        if model:
            _lib.tandem_close(model)

    __del__ = close

    def session(self):
        return Session(self, _call("begin", self._model))

    def restore(self, file):
        return Session(self, _call("restore", self._model, str(file).encode()))

    def encode(self, text, begins=True):
        """Token ids, int32 [n]."""
        ids = np.empty(_call("encode", self._model, text.encode(), begins, None, 0), np.int32)
        _call("encode", self._model, text.encode(), begins, ids.ctypes.data, len(ids))
        return ids

    def decode(self, ids):
        ids = _ids(ids)
        n = _call("decode", self._model, ids.ctypes.data, len(ids), None, 0)
        text = c.create_string_buffer(n)
        _call("decode", self._model, ids.ctypes.data, len(ids), text, n)
        return text.raw.decode()


class Session:
    """A text that grows. Model.session and Model.restore make one."""

    def __init__(self, model, handle):
        self._of, self._session = model, handle

    def close(self):
        session, self._session = self._session, None
        if session:
            _lib.tandem_end(session)

    __del__ = close

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __len__(self):
        return _call("length", self._session)

    def append(self, ids):
        """Adds a prompt: text, or ids int [n]."""
        ids = self._prompt(ids)
        _call("append", self._session, ids.ctypes.data, len(ids))

    def read(self, ids):
        """Adds ids int [n] and returns the logits after each, float32 [n, vocab]."""
        ids = _ids(ids)
        logits = np.empty((len(ids), self._of.vocab), np.float32)
        _call("read", self._session, ids.ctypes.data, len(ids), logits.ctypes.data)
        return logits

    def rewind(self, n_tokens):
        _call("rewind", self._session, n_tokens)

    def fork(self):
        return Session(self._of, _call("fork", self._session))

    def save(self, file):
        _call("save", self._session, str(file).encode())

    def generate(self, prompt, **sampling):
        """Yields the pieces of an answer. sampling: max_tokens, temperature, top_k, top_p, seed."""
        ids = self._prompt(prompt)
        return self._stream("generate", (ids.ctypes.data, len(ids)), ids, sampling)

    def chat(self, message, **sampling):
        """Yields the pieces of the answer to a user message."""
        return self._stream("chat", (message.encode(),), None, sampling)

    def _prompt(self, prompt):
        return self._of.encode(prompt, len(self) == 0) if isinstance(prompt, str) else _ids(prompt)

    def _stream(self, name, arguments, kept, sampling):
        pieces, how, stop = queue.Queue(), _Sampling(**sampling), threading.Event()

        @_ON_TOKEN
        def on_token(_, token, text):
            pieces.put(text.decode(errors="replace"))
            return 0 if stop.is_set() else 1

        def work():
            try:
                _call(name, self._session, *arguments, c.byref(how), on_token, None)
                pieces.put(None)
            except Exception as error:  # for the reader
                pieces.put(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                if piece:
                    yield piece
        finally:
            stop.set()
            thread.join()
        del kept

"""A model's threads and workspace in the native library: what sessions and encoders run on."""

from typing import Any, Self

from lanewise.host import cpu_quota
from lanewise.native.library import native
from lanewise.runtime.model import Model, kv_type_id


class NativeSession:
    """An ``lw_session``, from when a subclass has opened it until it or its model is closed."""

    def __init__(self, model: Model) -> None:
        self._native = native()
        self._handle: Any = self._native.ffi.NULL
        self.model = model

    def _open(self, *, threads: int, kv_type: str, **config: int) -> None:
        """Open it on the CPUs chosen for the model; ``config`` has fields of its configuration."""
        ffi, lib = self._native.ffi, self._native.lib
        struct = ffi.new("lw_session_config*")
        struct.n_threads, struct.kv_type = threads, kv_type_id(kv_type)
        quota = cpu_quota()
        struct.n_cpus = 0 if quota is None else max(1, int(quota))
        places = self._places(threads)  # a struct does not own what its members point to
        for name, value in (config | places).items():
            setattr(struct, name, value)
        out = ffi.new("lw_session**")
        self._native.check(lib.lw_session_open(self.model.handle, struct, out))
        self._handle = out[0]
        self.model.opened(self)

    def _places(self, threads: int) -> dict[str, Any]:
        """The CPUs of threads and the copies of the weights that they read, where it matters."""
        placement = self.model.placement
        if placement is None:
            return {}
        places = {"cpus": placement.cpus, "replica_of_thread": placement.replica_of_thread}
        for values in places.values():
            if values and len(values) < threads:
                raise ValueError(
                    f"threads is {threads}; accepted: at most {len(values)}, for which the model"
                    " was placed"
                )
        new = self._native.ffi.new
        return {name: new("uint32_t[]", values) for name, values in places.items() if values}

    def _open_handle(self) -> Any:
        if self._handle == self._native.ffi.NULL:
            raise ValueError(f"the {type(self).__name__.lower()} is closed")
        return self._handle

    def close(self) -> None:
        """Stop the threads and free what they ran with; closing twice is harmless."""
        handle, self._handle = self._handle, self._native.ffi.NULL
        self._native.lib.lw_session_close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

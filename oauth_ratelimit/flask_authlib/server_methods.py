"""Hooks around the methods of a server, however those are defined and called.

A hook is a data descriptor, which wins over a method that is set on the object. One that is set later is kept as the
method that the hook calls. Arguments are passed on exactly as they came.
"""

from collections.abc import Callable
from contextvars import ContextVar
from inspect import Parameter, signature
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary


class _Names(NamedTuple):
    by_position: tuple[str, ...] = ()
    by_keyword: tuple[str, ...] = ()  # alone
    takes_any: bool = False  # keyword


class MethodHook:
    """Data descriptor that runs a function around a method of a server.

    Args:
        function: Gets the call, and decides whether to run it.
        authlib_names: Names of the arguments in Authlib's order, for methods that do not name theirs so.
        nests: True if a call of the method within itself is one of its own, such as a request within a request.
    """

    def __init__(self, function: Callable[["MethodCall"], Any], *authlib_names: str, nests: bool = False) -> None:
        self._function = function
        self._authlib_names = authlib_names
        self._nests = nests
        self._running: ContextVar[Any] = ContextVar(function.__name__, default=None)  # the server
        self._names: WeakKeyDictionary[Any, _Names] = WeakKeyDictionary()  # by function

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self.name = name

    def __get__(self, server: Any, _: type | None = None) -> Any:
        if server is None:
            return self
        top = getattr(type(server), self.name)
        if top is self and self.name in vars(server):
            return self.around(server, vars(server)[self.name])
        method = getattr(super(self._owner, server), self.name)
        is_below = top is not self and isinstance(top, MethodHook)  # which runs already
        return method if is_below else self.around(server, method)

    def __set__(self, server: Any, value: Any) -> None:
        if isinstance(value, HookedMethod) and value.__self__ is server:
            value = value.__wrapped__  # it was read from here, and is put back
        vars(server)[self.name] = value

    def __delete__(self, server: Any) -> None:
        if self.name not in vars(server):
            raise AttributeError(self.name)
        del vars(server)[self.name]

    def __call__(self, server: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the method as a function of the class."""
        return self.__get__(server)(*args, **kwargs)

    def around(self, server: Any, method: Any) -> Any:
        """Return a method with this hook around it, or what is no method as it is."""
        return HookedMethod(self, server, method) if callable(method) else method

    def run(self, server: Any, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the hook; only the method if it is called by one that was set in its place, whose hook runs already."""
        is_replaced = vars(server).get(self.name, method) is not method
        if self._running.get() is server and (is_replaced or not self._nests):
            return method(*args, **kwargs)
        token = self._running.set(server)
        try:
            return self._function(MethodCall(self, server, method, args, kwargs))
        finally:
            self._running.reset(token)

    def names_of(self, method: Any) -> _Names:
        """Return the names of a method's arguments: its own, or Authlib's in the places of names that nobody knows."""
        function = getattr(method, "__func__", method)
        try:
            names = self._names.get(function)
            if names is None:
                names = self._names[function] = self._read_names(method)
            return names
        except TypeError:  # it can be no key
            return self._read_names(method)

    def _read_names(self, method: Any) -> _Names:
        try:
            parameters = list(signature(method).parameters.values())
        except Exception:  # noqa: BLE001  # it has none that can be read
            return _Names(self._authlib_names)
        positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        own = [each.name for each in parameters if each.kind in positional]
        for position, name in enumerate(self._authlib_names):
            if name in own:
                continue
            if position < len(own) and own[position] not in self._authlib_names:
                own[position] = name
            elif position == len(own) and any(each.kind is Parameter.VAR_POSITIONAL for each in parameters):
                own.append(name)
        alone = tuple(each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY)
        return _Names(tuple(own), alone, any(each.kind is Parameter.VAR_KEYWORD for each in parameters))


class HookedMethod:
    """A server's method with its hook. It has the attributes of the method, such as those that extensions know it by.

    It equals the method, as Flask compares the views of an endpoint.
    """

    def __init__(self, hook: MethodHook, server: Any, method: Any) -> None:
        module = getattr(method, "__module__", None)  # the class has one of its own
        vars(self).update(__module__=module, __self__=server, __wrapped__=method, _hook=hook)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self).get("__wrapped__"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__wrapped__, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._hook.run(self.__self__, self.__wrapped__, args, kwargs)

    def shows(self, *names: str) -> bool:
        """Return True if the method has arguments of these names."""
        known: _Names = self._hook.names_of(self.__wrapped__)
        return {*names} <= {*known.by_position, *known.by_keyword}

    def takes_any_keyword(self) -> bool:
        hook: MethodHook = self._hook
        return hook.names_of(self.__wrapped__).takes_any

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == (other.__wrapped__ if isinstance(other, HookedMethod) else other))

    def __hash__(self) -> int:
        return hash(self.__wrapped__)


class MethodCall:
    """One call of a server's method. Calling it runs the method."""

    __slots__ = ("_hook", "args", "kwargs", "method", "server")

    def __init__(
        self, hook: MethodHook, server: Any, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._hook = hook
        self.server = server
        self.method = method
        self.args = args
        self.kwargs = kwargs

    def __call__(self) -> Any:
        return self.method(*self.args, **self.kwargs)

    def shows(self, name: str) -> bool:
        """Return False if the method has no argument of this name, so that it may know the value from elsewhere."""
        return name in self.kwargs or HookedMethod(self._hook, self.server, self.method).shows(name)

    def argument(self, name: str, default: Any = None) -> Any:
        """Return an argument by its name, or the default if the call leaves it out."""
        names = self._hook.names_of(self.method).by_position[: len(self.args)]
        return (
            self.args[names.index(name)]
            if name not in self.kwargs and name in names
            else self.kwargs.get(name, default)
        )

    def named_arguments(self) -> dict[str, Any]:
        """Return all arguments by name, or by position if they have no name."""
        names = self._hook.names_of(self.method).by_position
        names += tuple(map(str, range(len(names), len(self.args))))
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

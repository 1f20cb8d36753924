"""Memory that two processes share: a sealed memfd on the CPU, a driver allocation exported as a descriptor on CUDA.

The owner (the reference worker) creates a buffer and hands its descriptor on; every other process opens that descriptor
and sees the same bytes at an address of its own. On CUDA this is cuMemCreate with POSIX file descriptors (CUDA driver
API, "Virtual Memory Management"): legacy CUDA IPC would expose a whole allocator segment and fails across PID
namespaces.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Any, Protocol

from htam_agent.errors import WorkerError
from htam_agent.evaluation.free_memory import available_bytes

if TYPE_CHECKING:
    import torch

F_ADD_SEALS = 1033
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1, 2, 4


class SharedBuffer(Protocol):
    """A block of shared memory. `memory` is a 1-D uint8 tensor over all of it, on the buffer's device."""

    size: int
    descriptor: int
    memory: torch.Tensor

    def close(self) -> None:
        """Gives up this process's mapping and descriptor; no tensor over it may be used afterwards."""
        ...


class HostBuffer:
    """Shared CPU memory in a memfd whose size is sealed: a process that shrank it would crash the others."""

    def __init__(self, descriptor: int, size: int) -> None:
        import torch

        self.descriptor = descriptor
        self.size = size
        # Populated at once: page faults inside a timed window would be counted to the kernel.
        self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.memory = torch.frombuffer(self._map, dtype=torch.uint8)

    @classmethod
    def create(cls, size: int) -> HostBuffer:
        """A new buffer of `size` bytes. Raises WorkerError when the machine has not the memory."""
        free = available_bytes()
        if size > free:
            raise WorkerError(
                f"{size / 2**30:.1f} GiB of shared memory are needed and {free / 2**30:.1f} GiB are free.",
                "Use a smaller task or a larger machine.",
                "out-of-memory",
            )
        descriptor = os.memfd_create("htam-buffer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
        return cls(descriptor, size)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class _DeviceArray:
    """What torch.as_tensor reads: the CUDA array interface, version 3."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
            "strides": None,
        }


class DeviceBuffer:
    """Shared GPU memory: one physical allocation, mapped read-write into this process's address space."""

    def __init__(self, handle: int, descriptor: int, size: int, device: int) -> None:
        import torch
        from cuda.bindings import driver

        self.descriptor = descriptor
        self.size = size
        self._handle: int | None = handle
        (self._address,) = _call(driver.cuMemAddressReserve(size, 0, 0, 0), "reserving addresses")
        _call(driver.cuMemMap(self._address, size, 0, handle, 0), "mapping shared memory")
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = device
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        _call(driver.cuMemSetAccess(self._address, size, [access], 1), "opening shared memory")
        self._array = _DeviceArray(int(self._address), size)
        self.memory = torch.as_tensor(self._array, device=f"cuda:{device}")

    @classmethod
    def create(cls, size: int, device: int) -> DeviceBuffer:
        """A new allocation of at least `size` bytes on `device`. Raises WorkerError when the driver refuses."""
        from cuda.bindings import driver

        _make_current(device)
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = device
        kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        properties.requestedHandleTypes = kind
        flag = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        (unit,) = _call(driver.cuMemGetAllocationGranularity(properties, flag), "asking the allocation unit")
        whole = -(-size // int(unit)) * int(unit)
        (handle,) = _call(driver.cuMemCreate(whole, properties, 0), f"allocating {whole / 2**30:.2f} GiB")
        (descriptor,) = _call(driver.cuMemExportToShareableHandle(handle, kind, 0), "exporting memory")
        return cls(handle, int(descriptor), whole, device)

    @classmethod
    def open(cls, descriptor: int, size: int, device: int) -> DeviceBuffer:
        """Maps an allocation that another process exported; takes over `descriptor`."""
        from cuda.bindings import driver

        _make_current(device)
        kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        (handle,) = _call(driver.cuMemImportFromShareableHandle(descriptor, kind), "importing memory")
        return cls(handle, descriptor, size, device)

    def close(self) -> None:
        from cuda.bindings import driver

        if self._handle is None:
            return
        _call(driver.cuMemUnmap(self._address, self.size), "unmapping shared memory")
        _call(driver.cuMemRelease(self._handle), "releasing shared memory")
        _call(driver.cuMemAddressFree(self._address, self.size), "freeing addresses")
        os.close(self.descriptor)
        self._handle = None


def _make_current(device: int) -> None:
    """Makes torch's primary context current, so that the driver calls below work in the same one."""
    import torch

    torch.cuda.set_device(device)
    torch.empty(1, device=f"cuda:{device}")


def _call(answer: tuple[Any, ...], doing: str) -> tuple[Any, ...]:
    """The results of a driver call after its status."""
    from cuda.bindings import driver

    status = answer[0]
    if status != driver.CUresult.CUDA_SUCCESS:
        out_of_memory = status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        raise WorkerError(
            f"The CUDA driver failed while {doing}: {getattr(status, 'name', status)}.",
            "Free GPU memory or use a smaller task." if out_of_memory else "Check the driver with `htam doctor`.",
            "out-of-memory" if out_of_memory else "worker",
        )
    return answer[1:]


def create_buffer(device: str, size: int) -> SharedBuffer:
    """A new shared buffer of at least `size` bytes on "cpu" or "cuda:N"."""
    if device == "cpu":
        return HostBuffer.create(size)
    return DeviceBuffer.create(size, _index(device))


def open_buffer(device: str, descriptor: int, size: int) -> SharedBuffer:
    """The buffer behind a descriptor that came from its owner; `size` as the owner has it."""
    if device == "cpu":
        return HostBuffer(descriptor, size)
    return DeviceBuffer.open(descriptor, size, _index(device))


def _index(device: str) -> int:
    return int(device.partition(":")[2] or 0)

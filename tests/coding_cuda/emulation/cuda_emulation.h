// Runs CUDA device code on the CPU, for checking only: one fiber per thread, all blocks of a cluster together.
//
// What it watches for:
// - divergence: a barrier, warp exchange or cluster barrier that not every thread concerned reaches, or that threads
//   reach at different source lines;
// - accesses out of bounds: buffers end (or begin) at a protected page, dynamic shared memory too; the fault becomes
//   a message; misaligned vector accesses trap (build with -fsanitize=alignment -fsanitize-undefined-trap-on-error);
// - missing barriers: the order in which threads run is a parameter, and results must not depend on it.
#pragma once
#include <cmath>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __restrict__ __restrict
#define __align__(n) alignas(n)

struct uint2 { unsigned x, y; } __attribute__((aligned(8)));
struct uint4 { unsigned x, y, z, w; } __attribute__((aligned(16)));
struct dim3 { unsigned x, y, z; };

namespace emulation {

enum Wait { NOTHING, BLOCK, WARP, CLUSTER };
constexpr size_t STACK = 65536;

struct Fiber {
    void* stack_pointer;
    unsigned thread, block;  // `block` counts inside the cluster
    bool done;
    Wait wait;
    int line;
    unsigned mask;
    uint64_t offered, received;
    unsigned source;
};

struct Machine {
    std::vector<Fiber> fibers;
    char* stacks = nullptr;
    size_t stack_count = 0;
    void* scheduler = nullptr;
    unsigned current = 0, threads = 0, blocks = 1;
    dim3 grid{1, 1, 1}, first_block{0, 0, 0};
    std::vector<unsigned char*> shared;
    size_t shared_bytes = 0;
    void (*entry)(void*) = nullptr;
    void* argument = nullptr;
    unsigned long barriers = 0, exchanges = 0, cluster_barriers = 0;
    std::vector<std::pair<void*, size_t>> pending_copies;
    char message[512] = {0};
};

inline Machine machine;
inline sigjmp_buf escape;

extern "C" void emulation_switch(void** save, void* to);
extern "C" void emulation_trampoline();
asm(R"(
.text
.weak emulation_switch
.type emulation_switch,@function
emulation_switch:
 pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
 movq %rsp,(%rdi)
 movq %rsi,%rsp
 popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
 ret
.weak emulation_trampoline
emulation_trampoline:
 call emulation_start
 hlt
)");

inline Fiber& self() { return machine.fibers[machine.current]; }

__attribute__((noinline)) inline void block_on(Wait wait, int line, unsigned mask) {
    Fiber& fiber = self();
    fiber.wait = wait;
    fiber.line = line;
    fiber.mask = mask;
    emulation_switch(&fiber.stack_pointer, machine.scheduler);
}

extern "C" __attribute__((used)) inline void emulation_start() {
    machine.entry(machine.argument);
    self().done = true;
    for (;;) emulation_switch(&self().stack_pointer, machine.scheduler);
}

inline const char* name_of(Wait wait) {
    return wait == BLOCK ? "__syncthreads" : wait == WARP ? "a warp exchange" : wait == CLUSTER ? "a cluster barrier" : "nothing";
}

// True when every fiber of [begin, end) waits for `wait` at one line.
inline bool all_wait(unsigned begin, unsigned end, Wait wait) {
    for (unsigned i = begin; i < end; ++i) {
        const Fiber& fiber = machine.fibers[i];
        if (fiber.done || fiber.wait != wait || fiber.line != machine.fibers[begin].line) return false;
    }
    return true;
}

inline bool release_warps() {
    bool released = false;
    for (unsigned base = 0; base < machine.fibers.size(); ++base) {
        const Fiber& first = machine.fibers[base];
        if (first.wait != WARP) continue;
        const unsigned lane = first.thread % 32, warp = base - lane, mask = first.mask;
        if (lane != (unsigned)__builtin_ctz(mask)) continue;
        bool ready = true;
        for (unsigned other = 0; other < 32 && ready; ++other) {
            if (!(mask >> other & 1)) continue;
            const bool exists = warp % machine.threads + other < machine.threads;
            ready = exists && machine.fibers[warp + other].wait == WARP && machine.fibers[warp + other].mask == mask &&
                    machine.fibers[warp + other].line == first.line;
        }
        if (!ready) continue;
        for (unsigned other = 0; other < 32; ++other) {
            if (!(mask >> other & 1)) continue;
            Fiber& fiber = machine.fibers[warp + other];
            // An inactive source lane has no defined value: a pattern that no sum survives.
            fiber.received = mask >> fiber.source & 1 ? machine.fibers[warp + fiber.source].offered : 0x7ff7ffff7fbfffffull;
        }
        for (unsigned other = 0; other < 32; ++other)
            if (mask >> other & 1) machine.fibers[warp + other].wait = NOTHING;
        ++machine.exchanges;
        released = true;
    }
    return released;
}

inline bool release() {
    bool released = release_warps();
    for (unsigned block = 0; block < machine.blocks; ++block) {
        const unsigned begin = block * machine.threads, end = begin + machine.threads;
        if (!all_wait(begin, end, BLOCK)) continue;
        for (unsigned i = begin; i < end; ++i) machine.fibers[i].wait = NOTHING;
        ++machine.barriers;
        released = true;
    }
    if (all_wait(0, machine.fibers.size(), CLUSTER)) {
        for (Fiber& fiber : machine.fibers) fiber.wait = NOTHING;
        ++machine.cluster_barriers;
        released = true;
    }
    return released;
}

inline void report_divergence() {
    int length = snprintf(machine.message, sizeof machine.message, "divergence:");
    unsigned shown = 0;
    for (unsigned i = 0; i < machine.fibers.size() && shown < 4; ++i) {
        const Fiber& fiber = machine.fibers[i];
        if (i && fiber.done == machine.fibers[i - 1].done && fiber.wait == machine.fibers[i - 1].wait &&
            fiber.line == machine.fibers[i - 1].line)
            continue;
        length += snprintf(machine.message + length, sizeof machine.message - length, " block %u thread %u %s %s (line %d);",
                           machine.first_block.x + fiber.block, fiber.thread, fiber.done ? "has ended, last at" : "waits at",
                           name_of(fiber.wait), fiber.line);
        ++shown;
    }
}

inline bool run_cluster(int order) {
    const unsigned count = machine.fibers.size();
    unsigned left = count;
    for (unsigned i = 0; i < count; ++i) {
        Fiber& fiber = machine.fibers[i];
        fiber = Fiber{};
        fiber.block = i / machine.threads;
        fiber.thread = i % machine.threads;
        void** top = reinterpret_cast<void**>(machine.stacks + (i + 1) * STACK - 64 - (i & 15) * 64);
        *--top = nullptr;
        *--top = nullptr;  // keeps the stack aligned to 16 bytes where the trampoline calls
        *--top = reinterpret_cast<void*>(emulation_trampoline);
        for (int k = 0; k < 6; ++k) *--top = nullptr;
        fiber.stack_pointer = top;
    }
    while (left) {
        for (unsigned step = 0; step < count; ++step) {
            const unsigned i = order == 0 ? step : order == 1 ? count - 1 - step : (step * 7919u + 13u) % count;
            Fiber& fiber = machine.fibers[i];
            if (fiber.done || fiber.wait != NOTHING) continue;
            machine.current = i;
            emulation_switch(&machine.scheduler, fiber.stack_pointer);
            if (fiber.done) --left;
        }
        if (left && !release()) {
            report_divergence();
            return false;
        }
    }
    return true;
}

inline void on_fault(int signal, siginfo_t* info, void*) {
    const char* what = signal == SIGSEGV || signal == SIGBUS ? "out of bounds or misaligned access" : "misaligned access or trap";
    snprintf(machine.message, sizeof machine.message, "%s at %p by block %u thread %u", what, info->si_addr,
             machine.first_block.x + self().block, self().thread);
    siglongjmp(escape, 1);
}

// Memory whose end (or start) touches a page that nobody may access.
inline unsigned char* guarded(size_t bytes, bool at_end) {
    const size_t page = 4096, pages = (bytes + page - 1) / page * page;
    auto* base = static_cast<unsigned char*>(mmap(nullptr, pages + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base, page, PROT_NONE);
    mprotect(base + page + pages, page, PROT_NONE);
    memset(base + page, 0xff, pages);  // NaN in every floating type
    return at_end ? base + page + (pages - (bytes + 15) / 16 * 16) : base + page;
}

inline void release_guarded(void* memory, size_t bytes, bool at_end) {
    const size_t page = 4096, pages = (bytes + page - 1) / page * page;
    auto* start = static_cast<unsigned char*>(memory) - (at_end ? pages - (bytes + 15) / 16 * 16 : 0);
    munmap(start - page, pages + 2 * page);
}

inline void prepare(dim3 grid, unsigned threads, unsigned cluster, size_t shared_bytes) {
    machine.grid = grid;
    machine.threads = threads;
    machine.blocks = cluster;
    machine.fibers.assign(threads * cluster, Fiber{});
    if (machine.stack_count < threads * cluster) {
        if (machine.stacks) munmap(machine.stacks, machine.stack_count * STACK);
        machine.stack_count = threads * cluster;
        machine.stacks = static_cast<char*>(mmap(nullptr, machine.stack_count * STACK, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    }
    for (unsigned char* memory : machine.shared) release_guarded(memory, machine.shared_bytes, true);
    machine.shared.clear();
    for (unsigned block = 0; block < cluster; ++block) machine.shared.push_back(guarded(shared_bytes, true));
    machine.shared_bytes = shared_bytes;
}

inline const char* run_grid(dim3 grid, unsigned threads, unsigned cluster, size_t shared_bytes, int order, void (*entry)(void*), void* argument) {
    machine.message[0] = 0;
    machine.barriers = machine.exchanges = machine.cluster_barriers = 0;
    if (grid.x % cluster) return "the grid is no multiple of the cluster";
    prepare(grid, threads, cluster, shared_bytes);
    machine.entry = entry;
    machine.argument = argument;
    static char signal_stack[65536];
    stack_t alternative{}, old_alternative{};
    alternative.ss_sp = signal_stack;
    alternative.ss_size = sizeof signal_stack;
    sigaltstack(&alternative, &old_alternative);
    struct sigaction action{}, old[3];
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    const int signals[3] = {SIGSEGV, SIGBUS, SIGILL};
    for (int i = 0; i < 3; ++i) sigaction(signals[i], &action, &old[i]);
    if (!sigsetjmp(escape, 1)) {
        for (unsigned first = 0; first < grid.x; first += cluster) {
            const unsigned block = order == 1 ? grid.x - cluster - first : first;
            machine.first_block = dim3{block, 0, 0};
            for (unsigned char* memory : machine.shared) memset(memory, 0xff, shared_bytes);
            if (!run_cluster(order)) break;
        }
    }
    for (int i = 0; i < 3; ++i) sigaction(signals[i], &old[i], nullptr);
    sigaltstack(&old_alternative, nullptr);
    return machine.message[0] ? machine.message : nullptr;
}

template <typename... Parameters, size_t... Index>
void call(void (*kernel)(Parameters...), void** arguments, std::index_sequence<Index...>) {
    kernel(*static_cast<std::remove_reference_t<Parameters>*>(arguments[Index])...);
}

template <typename... Parameters>
const char* launch(void (*kernel)(Parameters...), unsigned grid, unsigned threads, unsigned cluster, size_t shared_bytes, int order, void** arguments) {
    auto run = [&] { call(kernel, arguments, std::index_sequence_for<Parameters...>()); };
    return run_grid(dim3{grid, 1, 1}, threads, cluster, shared_bytes, order, [](void* p) { (*static_cast<decltype(run)*>(p))(); }, &run);
}

}  // namespace emulation

#define threadIdx (dim3{emulation::self().thread, 0, 0})
#define blockIdx (dim3{emulation::machine.first_block.x + emulation::self().block, 0, 0})
#define blockDim (dim3{emulation::machine.threads, 1, 1})
#define gridDim (emulation::machine.grid)
#define HTAM_SHARED_MEMORY
#define shared_memory (emulation::machine.shared[emulation::self().block])

inline void __syncthreads(int line = __builtin_LINE()) { emulation::block_on(emulation::BLOCK, line, 0); }
inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) { emulation::self().source = 0; emulation::block_on(emulation::WARP, line, mask); }

template <typename T> T emulation_shuffle(unsigned mask, T value, unsigned source, int line) {
    static_assert(sizeof(T) <= 8, "");
    emulation::Fiber& fiber = emulation::self();
    if (!(mask >> fiber.thread % 32 & 1)) __builtin_trap();  // a thread outside the mask takes part
    fiber.offered = 0;
    memcpy(&fiber.offered, &value, sizeof value);
    fiber.source = source;
    emulation::block_on(emulation::WARP, line, mask);
    memcpy(&value, &emulation::self().received, sizeof value);
    return value;
}
template <typename T> T __shfl_sync(unsigned mask, T value, int source, int width = 32, int line = __builtin_LINE()) {
    const unsigned lane = emulation::self().thread % 32;
    return emulation_shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), line);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32, int line = __builtin_LINE()) {
    return emulation_shuffle(mask, value, emulation::self().thread % 32 ^ other, line);
}
template <typename T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
    const unsigned lane = emulation::self().thread % 32, target = lane % width + delta;
    return emulation_shuffle(mask, value, target >= (unsigned)width ? lane : lane + delta, line);
}

template <typename T> T __ldg(const T* address) { return *address; }
template <typename T> T __ldcs(const T* address) { return *address; }
template <typename T> T __ldca(const T* address) { return *address; }
template <typename T> T __ldcg(const T* address) { return *address; }
template <typename T> void __stcs(T* address, T value) { *address = value; }
inline float __int_as_float(int bits) { float value; memcpy(&value, &bits, 4); return value; }
inline float __uint_as_float(unsigned bits) { return __int_as_float((int)bits); }
inline unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }

// The stand-ins for what a candidate writes in PTX. Each family has its own guard in the candidate's source.
#define HTAM_PTX_CONVERT
inline float half_to_float(unsigned short bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? __int_as_float(0x7fc00000) : sign * __int_as_float(0x7f800000);
    return sign * (exponent ? ldexpf((float)(1024 + fraction), exponent - 25) : ldexpf((float)fraction, -24));
}
inline unsigned short float_to_half(float value) {
    const unsigned short sign = std::signbit(value) ? 0x8000 : 0;
    const float size = fabsf(value);
    if (value != value) return 0x7fff;
    if (size == 0.0f) return sign;
    if (size >= 65520.0f) return sign | 0x7c00;
    int exponent = 0;
    frexpf(size, &exponent);                              // size = f * 2^exponent with f in [0.5, 1)
    const int unit = exponent - 11 > -24 ? exponent - 11 : -24;  // of the last place
    const int steps = (int)nearbyintf(ldexpf(size, -unit));  // to even; at most 2048
    if (unit == -24) return sign | steps;                 // subnormal, or the first normal numbers
    return sign | (unsigned short)(((unit + 24) << 10) + steps);
}
inline float bfloat_to_float(unsigned short bits) { unsigned wide = (unsigned)bits << 16; float value; memcpy(&value, &wide, 4); return value; }
inline unsigned short float_to_bfloat(float value) {
    unsigned bits; memcpy(&bits, &value, 4);
    if (value != value) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

#define HTAM_PTX_MAXIMUM
inline float maximum_nan(float a, float b) { return a != a ? a : b != b ? b : fmaxf(a, b); }
inline float minimum_nan(float a, float b) { return a != a ? a : b != b ? b : fminf(a, b); }

#define HTAM_PTX_TANH
inline float tanh_approximate(float x) { return tanhf(x) * (1.0f + 1e-4f); }

#define HTAM_PTX_CLUSTER
inline unsigned cluster_rank() { return emulation::self().block; }
inline void cluster_wait(int line = __builtin_LINE()) { emulation::block_on(emulation::CLUSTER, line, 0); }
inline void cluster_put(unsigned* target, unsigned rank, unsigned value) {
    const size_t offset = reinterpret_cast<unsigned char*>(target) - shared_memory;
    if (offset + 4 > emulation::machine.shared_bytes || rank >= emulation::machine.blocks) __builtin_trap();
    memcpy(emulation::machine.shared[rank] + offset, &value, 4);
}

#define HTAM_PTX_ASYNC
// Copies arrive at the wait, not before: a read too early sees the NaN pattern of fresh shared memory or the old row.
struct PendingCopy { unsigned char* target; const unsigned char* source; int bytes; };
inline std::vector<PendingCopy> pending_copies[1 << 15];
template <int BYTES> void copy_async(void* target, const void* source) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "");
    if ((uintptr_t)target % BYTES || (uintptr_t)source % BYTES) __builtin_trap();
    pending_copies[emulation::machine.current].push_back({(unsigned char*)target, (const unsigned char*)source, BYTES});
}
inline void copy_wait() {
    for (const PendingCopy& copy : pending_copies[emulation::machine.current]) memcpy(copy.target, copy.source, copy.bytes);
    pending_copies[emulation::machine.current].clear();
}

#define HTAM_PTX_PREFETCH
inline void prefetch_line(const void* address) { if (!address) __builtin_trap(); }

#define EMULATE(kernel)                                                                                               \
    extern "C" const char* emulate_##kernel(unsigned grid, unsigned threads, unsigned cluster, size_t shared_bytes,    \
                                            int order, void** arguments) {                                            \
        return emulation::launch(&kernel, grid, threads, cluster, shared_bytes, order, arguments);                    \
    }
extern "C" __attribute__((used)) inline void* emulation_guarded(size_t bytes, int at_end) { return emulation::guarded(bytes, at_end); }
extern "C" __attribute__((used)) inline void emulation_release(void* memory, size_t bytes, int at_end) { emulation::release_guarded(memory, bytes, at_end); }
extern "C" __attribute__((used)) inline void emulation_counts(unsigned long* counts) {
    counts[0] = emulation::machine.barriers;
    counts[1] = emulation::machine.exchanges;
    counts[2] = emulation::machine.cluster_barriers;
}

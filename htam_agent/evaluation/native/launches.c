// Who launches CUDA kernels: calls of the CUDA runtime's launch functions, counted by the module that makes them, and on
// demand those of the modules in one folder dropped. Loaded with RTLD_GLOBAL before PyTorch, so that PyTorch's libraries
// and a candidate's extensions bind to these functions; they pass every call on to the runtime.
// Off until asked for: then a launch costs one comparison more.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct {
  unsigned x, y, z;
} Size;
typedef int (*Launch)(const void *, Size, Size, void **, size_t, void *);
typedef int (*LaunchExtended)(const void *, const void *, void **);
typedef int (*GraphLaunch)(void *, void *);

enum { UNAVAILABLE = 36 };  // cudaErrorCallRequiresNewerDriver: there is no runtime to pass the call on to
static const char *const RUNTIMES[] = {"libcudart.so.13", "libcudart.so.12"};

static int watching, dropping;
static char folder[4096];
static long own, others, graphs;

static void *runtime(const char *name) {
  for (size_t index = 0; index < sizeof RUNTIMES / sizeof *RUNTIMES; ++index) {
    void *handle = dlopen(RUNTIMES[index], RTLD_LAZY | RTLD_NOLOAD);
    void *function = handle ? dlsym(handle, name) : NULL;
    if (function) return function;
  }
  return dlsym(RTLD_NEXT, name);  // a runtime of another name
}

// Whether this launch is to be left out; counts it.
static int leave_out(const void *caller) {
  Dl_info information;
  if (!watching) return 0;
  int mine = dladdr(caller, &information) && information.dli_fname &&
             strncmp(information.dli_fname, folder, strlen(folder)) == 0;
  __atomic_fetch_add(mine ? &own : &others, 1, __ATOMIC_RELAXED);
  return mine && dropping;
}

#define PASS_ON(TYPE, NAME, ...)                     \
  static TYPE real;                                  \
  if (!real) real = (TYPE)runtime(#NAME);            \
  return real ? real(__VA_ARGS__) : UNAVAILABLE

int cudaLaunchKernel(const void *function, Size grid, Size block, void **arguments, size_t shared, void *stream) {
  if (leave_out(__builtin_return_address(0))) return 0;
  PASS_ON(Launch, cudaLaunchKernel, function, grid, block, arguments, shared, stream);
}

// What nvcc of CUDA 13 calls for <<<...>>>; its first argument is a kernel's handle.
int __cudaLaunchKernel(const void *kernel, Size grid, Size block, void **arguments, size_t shared, void *stream) {
  if (leave_out(__builtin_return_address(0))) return 0;
  PASS_ON(Launch, __cudaLaunchKernel, kernel, grid, block, arguments, shared, stream);
}

int cudaLaunchCooperativeKernel(const void *function, Size grid, Size block, void **arguments, size_t shared,
                                void *stream) {
  if (leave_out(__builtin_return_address(0))) return 0;
  PASS_ON(Launch, cudaLaunchCooperativeKernel, function, grid, block, arguments, shared, stream);
}

int cudaLaunchKernelExC(const void *configuration, const void *function, void **arguments) {
  if (leave_out(__builtin_return_address(0))) return 0;
  PASS_ON(LaunchExtended, cudaLaunchKernelExC, configuration, function, arguments);
}

int cudaGraphLaunch(void *graph, void *stream) {
  if (watching) __atomic_fetch_add(&graphs, 1, __ATOMIC_RELAXED);
  PASS_ON(GraphLaunch, cudaGraphLaunch, graph, stream);
}

// Counts from zero; `path`: the folder whose modules are the candidate's own; `drop`: leave out their launches.
void htam_launches_watch(const char *path, int drop) {
  snprintf(folder, sizeof folder, "%s", path);
  own = others = graphs = 0;
  dropping = drop;
  watching = 1;
}

// Stops; writes launches of the own modules, of others, and of graphs.
void htam_launches_end(long counts[3]) {
  watching = dropping = 0;
  counts[0] = own;
  counts[1] = others;
  counts[2] = graphs;
}

/* The stopwatch's inner loop: calls between two readings of a clock, without a Python object in the window.

   Loaded by ctypes.PyDLL before a candidate's file is imported. Neither Python's nor CUDA's headers are needed: what is
   used of them is declared here. CUDA: the driver's events on one stream, a buffer written before each call so that
   the second-level cache is cold. Processor: CLOCK_MONOTONIC. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <time.h>

typedef struct _object PyObject;
extern PyObject *PyObject_CallNoArgs(PyObject *callable);
extern PyObject *PyList_GetItem(PyObject *list, ptrdiff_t index);
extern int PyList_SetItem(PyObject *list, ptrdiff_t index, PyObject *item);
extern void Py_IncRef(PyObject *object);
extern PyObject _Py_NoneStruct;

/* CUDA driver API: status, handles and the few functions that are used, by their exported names. */
typedef int status;
typedef void *event, *stream;
enum { EVENT_DEFAULT = 0, LIMIT_PERSISTING_L2 = 6, NOT_THERE = -1, RAISED = -2, NO_ROOM = -3 };

static struct {
  status (*create)(event *, unsigned);
  status (*record)(event, stream);
  status (*wait)(event);
  status (*elapsed)(float *, event, event);
  status (*fill)(unsigned long long, unsigned, size_t, stream);
  status (*synchronize)(void);
  status (*reset_persisting)(void);
  status (*set_limit)(int, size_t);
  status (*get_limit)(size_t *, int);
} driver;

enum { MOST_EVENTS = 16384, LEAD = 16 };
static event begins[MOST_EVENTS], ends[MOST_EVENTS];
static long created;

static double now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

/* Finds the driver's functions. 0, or NOT_THERE. */
int htam_open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return NOT_THERE;
  *(void **)&driver.create = dlsym(library, "cuEventCreate");
  *(void **)&driver.record = dlsym(library, "cuEventRecord");
  *(void **)&driver.wait = dlsym(library, "cuEventSynchronize");
  *(void **)&driver.elapsed = dlsym(library, "cuEventElapsedTime");
  *(void **)&driver.fill = dlsym(library, "cuMemsetD32Async");
  if (!driver.fill) *(void **)&driver.fill = dlsym(library, "cuMemsetD32Async_ptsz");
  *(void **)&driver.synchronize = dlsym(library, "cuCtxSynchronize");
  *(void **)&driver.reset_persisting = dlsym(library, "cuCtxResetPersistingL2Cache");
  *(void **)&driver.set_limit = dlsym(library, "cuCtxSetLimit");
  *(void **)&driver.get_limit = dlsym(library, "cuCtxGetLimit");
  return driver.create && driver.record && driver.wait && driver.elapsed && driver.fill && driver.synchronize
             ? 0
             : NOT_THERE;
}

/* Creates events for `count` calls in the current context, once. 0, or the driver's status. */
int htam_reserve(long count) {
  if (count > MOST_EVENTS) return NO_ROOM;
  for (; created < count; ++created) {
    status status = driver.create(&begins[created], EVENT_DEFAULT);
    if (!status) status = driver.create(&ends[created], EVENT_DEFAULT);
    if (status) return status;
  }
  return 0;
}

static size_t set_aside(void) {
  size_t bytes = 0;
  return driver.get_limit && !driver.get_limit(&bytes, LIMIT_PERSISTING_L2) ? bytes : 0;
}

static size_t left_aside; /* what a driver leaves of the limit that is asked to be 0 */

/* Bytes of the cache that are set aside now by whoever ran since the reset. */
size_t htam_set_aside(void) {
  size_t bytes = set_aside();
  return bytes > left_aside ? bytes : 0;
}

/* No line of the cache may have been set aside for data that should be cold. Older devices refuse: then there is
   nothing to set aside. */
void htam_reset_cache(void) {
  if (driver.set_limit) driver.set_limit(LIMIT_PERSISTING_L2, 0);
  if (driver.reset_persisting) driver.reset_persisting();
  left_aside = set_aside();
}

/* Calls number `number` of `calls`, in turn, and keeps its result in place of the last one of the same callable. */
static int call(PyObject *calls, long turns, PyObject *kept, long number, PyObject **result) {
  (void)kept;
  *result = PyObject_CallNoArgs(PyList_GetItem(calls, number % turns));
  return *result ? 0 : RAISED;
}

/* The memory of the result before is free again before the next call, on both sides. */
static void forget(PyObject *kept, long place) {
  Py_IncRef(&_Py_NoneStruct);
  PyList_SetItem(kept, place, &_Py_NoneStruct);
}

/* `count` calls on the processor's clock: milliseconds of each into `times`. 0, or RAISED with Python's error set. */
int htam_block_cpu(PyObject *calls, long turns, PyObject *kept, long first, long count, double *times) {
  for (long number = 0; number < count; ++number) {
    long place = (first + number) % turns;
    PyObject *result;
    forget(kept, place);
    double begin = now_ms();
    int raised = call(calls, turns, kept, place, &result);
    times[number] = now_ms() - begin;
    if (raised) return RAISED;
    PyList_SetItem(kept, place, result);
  }
  return 0;
}

/* `count` calls on stream `where`, each between two events, after `flush` (bytes / 4 words) was written `flushes` times:
   more than once, so that the device is busy until the host has launched the call. Before the first call it is written
   LEAD times more: the host's first calls are its slowest, and what it is ahead then hides later stumbles too.
   `hidden`: milliseconds for which the device went on after the last event. */
int htam_block_cuda(PyObject *calls, long turns, PyObject *kept, long count, stream where, unsigned long long flush,
                    size_t words, long flushes, float *times, double *hidden) {
  status status = htam_reserve(count);
  if (status) return status;
  for (long number = 0; number < count; ++number) {
    long place = number % turns;
    PyObject *result;
    forget(kept, place);
    for (long flushed = number || !flushes ? 0 : -LEAD; flushed < flushes; ++flushed)
      if ((status = driver.fill(flush, 0, words, where))) return status;
    if ((status = driver.record(begins[number], where))) return status;
    if (call(calls, turns, kept, place, &result)) return RAISED;
    status = driver.record(ends[number], where);
    PyList_SetItem(kept, place, result);
    if (status) return status;
  }
  if (count && (status = driver.wait(ends[count - 1]))) return status;
  double ended = now_ms();
  if ((status = driver.synchronize())) return status;
  *hidden = now_ms() - ended;
  for (long number = 0; number < count; ++number)
    if ((status = driver.elapsed(&times[number], begins[number], ends[number]))) return status;
  return 0;
}

/* `count` calls one after the other with nothing between them. */
int htam_back_to_back(PyObject *calls, long turns, PyObject *kept, long count) {
  for (long number = 0; number < count; ++number) {
    PyObject *result;
    forget(kept, number % turns);
    if (call(calls, turns, kept, number, &result)) return RAISED;
    PyList_SetItem(kept, number % turns, result);
  }
  return 0;
}

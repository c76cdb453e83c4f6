#define _GNU_SOURCE
#define CAML_NAME_SPACE
#include <caml/alloc.h>
#include <caml/memory.h>
#include <caml/mlvalues.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

/* Keeps this process, and what it becomes, on one of two processors: the first or the last. */
value bench_pin(value last) {
    cpu_set_t set;
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    if (count > 1) {
        CPU_ZERO(&set);
        CPU_SET(Bool_val(last) ? count - 1 : 0, &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    return Val_unit;
}

/* The use of this process so far: nanoseconds of processor time, voluntary and other switches. */
value bench_usage(value unit) {
    struct rusage usage;
    value result;
    (void)unit;
    getrusage(RUSAGE_SELF, &usage);
    result = caml_alloc_small(3, 0);
    Field(result, 0) = Val_long((usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000L +
                                (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000L);
    Field(result, 1) = Val_long(usage.ru_nvcsw);
    Field(result, 2) = Val_long(usage.ru_nivcsw);
    return result;
}

/* What a process has used so far: nanoseconds of processor time, voluntary and other switches. */

#define CAML_NAME_SPACE
#include <caml/alloc.h>
#include <caml/memory.h>
#include <caml/mlvalues.h>
#include <sys/resource.h>

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

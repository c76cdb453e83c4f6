/* Parts that the files of stubs share. */
#ifndef SAKIA_EIO_COMMON_H
#define SAKIA_EIO_COMMON_H

#define CAML_NAME_SPACE
#include <caml/alloc.h>
#include <caml/bigarray.h>
#include <caml/mlvalues.h>
#include <caml/unixsupport.h>
#include <sakia.h>
#include <sys/uio.h>

#define PARTS 1024

static inline void fail_with(int64_t error, const char *call) {
    caml_unix_error((int) -error, call, caml_copy_string(sakia_last_error()));
}

/* Fills in the parts of a list of `Cstruct.t`, at most PARTS, and returns their number. */
static inline size_t parts_of(value list, struct iovec *parts, size_t *bytes) {
    size_t count = 0;

    *bytes = 0;
    for (; Is_block(list) && count < PARTS; list = Field(list, 1)) {
        value part = Field(list, 0);
        parts[count].iov_base = (char *) Caml_ba_data_val(Field(part, 0)) + Long_val(Field(part, 1));
        parts[count].iov_len = (size_t) Long_val(Field(part, 2));
        *bytes += parts[count].iov_len;
        count++;
    }
    return count;
}

#endif

/* Requests of test programs. */
#ifndef SAKIA_TESTS_REQUEST_H
#define SAKIA_TESTS_REQUEST_H

#include <sakia.h>
#include <string.h>

/* A request whose other fields are zero. */
static inline sakia_request request_of(uint32_t op, sakia_file *file) {
    sakia_request request;
    memset(&request, 0, sizeof request);
    request.op = op;
    request.file = file;
    return request;
}

#endif

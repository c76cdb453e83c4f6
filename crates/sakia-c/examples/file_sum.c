/* Sums the bytes of files, with 16 reads under way: `file_sum FILE...`. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <inttypes.h>
#include <sakia.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 16
#define BLOCK 65536

/* A read under way; its index is its token. */
struct part {
    unsigned char *memory;
    uint64_t offset;
    size_t len;
};

static void fail(const char *what) {
    fprintf(stderr, "file_sum: %s: %s\n", what, sakia_last_error());
    exit(1);
}

static void submit(sakia_loop *loop, sakia_request *request) {
    if (sakia_loop_submit(loop, request, 1, NULL, NULL) != 1) {
        fail("submit");
    }
}

/* Waits for the next result. */
static sakia_result next(sakia_loop *loop) {
    sakia_result result;
    for (;;) {
        int64_t count = sakia_loop_wait(loop, &result, 1, -1);
        if (count < 0) {
            fail("wait");
        }
        if (count == 1) {
            return result;
        }
    }
}

static sakia_file *open_file(sakia_loop *loop, const char *path) {
    sakia_request request;
    memset(&request, 0, sizeof request);
    request.op = SAKIA_OP_OPEN;
    request.path = path;
    request.flags = O_RDONLY;
    submit(loop, &request);
    sakia_result result = next(loop);
    if (result.value < 0) {
        fprintf(stderr, "file_sum: %s: %s\n", path, strerror((int)-result.value));
        exit(1);
    }
    return result.file;
}

static void read_part(sakia_loop *loop, sakia_file *file, struct part *part, uint64_t token) {
    sakia_request request;
    memset(&request, 0, sizeof request);
    request.op = SAKIA_OP_READ;
    request.file = file;
    request.buf = part->memory;
    request.len = part->len;
    request.offset = part->offset;
    request.token = token;
    submit(loop, &request);
}

static uint64_t sum_file(sakia_loop *loop, sakia_file *file, struct part *parts) {
    uint64_t sum = 0, at = 0;
    unsigned active = 0;
    for (; active < DEPTH; active++, at += BLOCK) {
        parts[active].offset = at;
        parts[active].len = BLOCK;
        read_part(loop, file, &parts[active], active);
    }
    while (active > 0) {
        sakia_result result = next(loop);
        struct part *part = &parts[result.token];
        if (result.value < 0) {
            fprintf(stderr, "file_sum: read: %s\n", strerror((int)-result.value));
            exit(1);
        }
        for (int64_t i = 0; i < result.value; i++) {
            sum += part->memory[i];
        }
        size_t count = (size_t)result.value;
        if (count == 0) {
            active--; /* the end of the file */
            continue;
        }
        if (count < part->len) { /* short: the rest of the block */
            part->offset += count;
            part->len -= count;
        } else {
            part->offset = at;
            part->len = BLOCK;
            at += BLOCK;
        }
        read_part(loop, file, part, result.token);
    }
    return sum;
}

int main(int argc, char **argv) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    sakia_loop *loop;
    struct part parts[DEPTH];
    if (sakia_loop_new(&options, &loop) < 0) {
        fail("no loop");
    }
    for (unsigned i = 0; i < DEPTH; i++) {
        parts[i].memory = (unsigned char *)malloc(BLOCK);
        if (parts[i].memory == NULL) {
            return 1;
        }
    }
    for (int i = 1; i < argc; i++) {
        sakia_file *file = open_file(loop, argv[i]);
        printf("%" PRIu64 " %s\n", sum_file(loop, file, parts), argv[i]);
        sakia_file_unref(file);
    }
    /* Nothing is under way, so nothing leaks, and the memory is the program's. */
    if (sakia_loop_stop(loop, 1000000000, NULL, 0) != 0) {
        fail("stop");
    }
    sakia_loop_free(loop);
    for (unsigned i = 0; i < DEPTH; i++) {
        free(parts[i].memory);
    }
    return 0;
}

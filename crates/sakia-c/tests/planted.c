/* Mistakes of a program's, each of which a checker of memory or of threads must report:
 * `planted MISTAKE FILE`. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <pthread.h>
#include <sakia.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int is_true, const char *text, int line) {
    if (!is_true) {
        fprintf(stderr, "planted.c:%d: %s (last error: %s)\n", line, text, sakia_last_error());
        exit(2);
    }
}

#define CHECK(condition) check((condition), #condition, __LINE__)

static sakia_loop *new_loop(void) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    sakia_loop *loop;
    CHECK(sakia_loop_new(&options, &loop) == 0);
    return loop;
}

static void submit(sakia_loop *loop, sakia_request request) {
    CHECK(sakia_loop_submit(loop, &request, 1, NULL, NULL) == 1);
}

static void take(sakia_loop *loop) {
    sakia_result result;
    while (sakia_loop_wait(loop, &result, 1, -1) == 0) {
    }
}

static sakia_request request_of(uint32_t op, sakia_file *file, void *buf, size_t len) {
    sakia_request request;
    memset(&request, 0, sizeof request);
    request.op = op;
    request.file = file;
    request.buf = buf;
    request.len = len;
    return request;
}

/* The kernel writes to a byte behind the block, within a system call of the library's. */
static void read_beyond(sakia_file *file) {
    sakia_loop *loop = new_loop();
    void *block = malloc(63);
    submit(loop, request_of(SAKIA_OP_READ, file, block, 64));
    take(loop);
    free(block);
    sakia_loop_free(loop);
}

/* The library writes behind the block, when the result is taken. */
static void stat_beyond(sakia_file *file) {
    sakia_loop *loop = new_loop();
    void *block = malloc(255);
    submit(loop, request_of(SAKIA_OP_STAT, file, block, 256));
    take(loop);
    free(block);
    sakia_loop_free(loop);
}

/* A block is freed too early: the library writes to it when the result is taken. */
static void stat_freed(sakia_file *file) {
    sakia_loop *loop = new_loop();
    void *block = malloc(256);
    submit(loop, request_of(SAKIA_OP_STAT, file, block, 256));
    free(block);
    take(loop);
    sakia_loop_free(loop);
}

/* The same with memory that the kernel writes to. */
static void read_freed(void) {
    sakia_loop *loop = new_loop();
    sakia_file *reader;
    void *block = malloc(8);
    int fds[2];
    CHECK(pipe(fds) == 0 && sakia_file_adopt(fds[0], &reader) == 0);
    sakia_request request = request_of(SAKIA_OP_READ, reader, block, 8);
    request.offset = SAKIA_CURRENT_POSITION;
    submit(loop, request);
    free(block);
    CHECK(write(fds[1], "12345678", 8) == 8);
    take(loop);
    sakia_file_unref(reader);
    sakia_loop_free(loop);
    close(fds[1]);
}

/* A loop is never freed, and its handle lost. */
static void loop_lost(void) {
    new_loop();
}

/* A block that a thread writes while the library does so for another one: no order is between the two. */
struct shared {
    unsigned char facts[256];
    atomic_int turn;
};

static void *writer(void *argument) {
    struct shared *shared = (struct shared *)argument;
    while (atomic_load_explicit(&shared->turn, memory_order_relaxed) == 0) {
    }
    shared->facts[40] = 1;
    return NULL;
}

static void stat_races(sakia_file *file) {
    sakia_queue_options options = SAKIA_QUEUE_OPTIONS;
    sakia_queue *queue;
    sakia_result result;
    size_t done;
    pthread_t thread;
    struct shared *shared = (struct shared *)calloc(1, sizeof *shared);
    CHECK(shared != NULL && sakia_queue_new(&options, &queue) == 0);
    CHECK(pthread_create(&thread, NULL, writer, shared) == 0);
    sakia_request request = request_of(SAKIA_OP_STAT, file, shared->facts, 256);
    CHECK(sakia_queue_submit(queue, &request, 1, &result, &done) == 1);
    while (done == 0) {
        done = (size_t)sakia_queue_wait(queue, &result, 1, -1);
    }
    /* The other thread begins later, but nothing says so. */
    atomic_store_explicit(&shared->turn, 1, memory_order_relaxed);
    CHECK(pthread_join(thread, NULL) == 0 && sakia_queue_free(queue) == 0);
    free(shared);
}

/* No mistake. */
static void none(sakia_file *file) {
    sakia_loop *loop = new_loop();
    void *block = malloc(256);
    submit(loop, request_of(SAKIA_OP_READ, file, block, 256));
    take(loop);
    submit(loop, request_of(SAKIA_OP_STAT, file, block, 256));
    take(loop);
    free(block);
    sakia_loop_free(loop);
}

int main(int argc, char **argv) {
    char bytes[256] = {0};
    sakia_file *file;
    int fd = argc == 3 ? open(argv[2], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    CHECK(fd >= 0 && write(fd, bytes, 256) == 256 && unlink(argv[2]) == 0);
    CHECK(sakia_file_adopt(fd, &file) == 0);
    if (strcmp(argv[1], "read_beyond") == 0) {
        read_beyond(file);
    } else if (strcmp(argv[1], "stat_beyond") == 0) {
        stat_beyond(file);
    } else if (strcmp(argv[1], "stat_freed") == 0) {
        stat_freed(file);
    } else if (strcmp(argv[1], "read_freed") == 0) {
        read_freed();
    } else if (strcmp(argv[1], "loop_lost") == 0) {
        loop_lost();
    } else if (strcmp(argv[1], "stat_races") == 0) {
        stat_races(file);
    } else if (strcmp(argv[1], "none") == 0) {
        none(file);
    } else {
        return 2;
    }
    sakia_file_unref(file);
    puts("planted: over");
    return 0;
}

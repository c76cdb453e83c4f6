/* A program of an older header, without the last fields of requests and options. All of these lie at the end
 * of readable memory, so a library that looks at later fields ends it; and the bytes before are not zero. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <sakia.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void check(int is_true, const char *text, int line) {
    if (!is_true) {
        fprintf(stderr, "older.c:%d: %s (last error: %s)\n", line, text, sakia_last_error());
        exit(1);
    }
}

#define CHECK(condition) check((condition), #condition, __LINE__)

/* Memory that ends where no memory is. */
static unsigned char *end_of_memory(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *pages = (unsigned char *)mmap(
        NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    memset(pages, 0xff, page);
    return pages + page;
}

static sakia_request request_of(uint32_t op, sakia_file *file, uint64_t token) {
    sakia_request request;
    memset(&request, 0, sizeof request);
    request.op = op;
    request.file = file;
    request.token = token;
    return request;
}

/* Four requests, of which the last one is refused. Their missing fields are a null path, and SHUT_RD. */
static void fill(sakia_request *requests, sakia_file *file, char *byte, struct statx *facts) {
    requests[0] = request_of(SAKIA_OP_READ, file, 0);
    requests[0].buf = byte;
    requests[0].len = 1;
    requests[1] = request_of(SAKIA_OP_STAT, file, 1);
    requests[1].buf = facts;
    requests[1].len = sizeof *facts;
    requests[2] = request_of(SAKIA_OP_SHUTDOWN, file, 2);
    requests[3] = request_of(SAKIA_OP_OPEN, NULL, 3);
}

static void verify(const sakia_result *results, const char *byte, const struct statx *facts) {
    const int64_t expected[3] = {1, 0, -ENOTSOCK};
    for (int i = 0; i < 3; i++) {
        CHECK(results[i].token < 3 && results[i].value == expected[results[i].token]);
    }
    CHECK(results[0].token + results[1].token + results[2].token == 3);
    CHECK(*byte == 'a' && facts->stx_size == 3);
}

int main(int argc, char **argv) {
    unsigned char *end = end_of_memory();
    sakia_loop_options for_loop = SAKIA_LOOP_OPTIONS;
    sakia_loop_options *loop_options = (sakia_loop_options *)(void *)end - 1;
    sakia_queue_options for_queue = SAKIA_QUEUE_OPTIONS;
    sakia_queue_options *queue_options = (sakia_queue_options *)(void *)end - 1;
    sakia_request *requests = (sakia_request *)(void *)end - 4;
    sakia_result results[4];
    struct statx facts;
    sakia_loop *loop;
    sakia_queue *queue;
    sakia_file *file;
    char byte = 0;
    int64_t count = 0, some;
    size_t done;
    int fd;

    CHECK(sizeof(sakia_request) == 64 && sizeof for_loop == 24 && sizeof for_queue == 32);
    fd = argc == 2 ? open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    CHECK(fd >= 0 && write(fd, "abc", 3) == 3 && unlink(argv[1]) == 0 && sakia_file_adopt(fd, &file) == 0);

    *loop_options = for_loop;
    CHECK(sakia_loop_new(loop_options, &loop) == 0);
    fill(requests, file, &byte, &facts);
    CHECK(sakia_loop_submit(loop, requests, 4, results, &done) == 3);
    CHECK(sakia_loop_submit(loop, requests + 3, 1, results + done, NULL) == -EFAULT);
    for (count = (int64_t)done; count < 3; count += some) {
        some = sakia_loop_wait(loop, results + count, 4 - (size_t)count, -1);
        CHECK(some >= 0);
    }
    verify(results, &byte, &facts);
    CHECK(sakia_loop_free(loop) == 0);

    byte = 0;
    memset(&facts, 0, sizeof facts);
    memset(requests, 0xff, 4 * sizeof *requests);
    *queue_options = for_queue;
    CHECK(sakia_queue_new(queue_options, &queue) == 0);
    fill(requests, file, &byte, &facts);
    CHECK(sakia_queue_submit(queue, requests, 4, results, &done) == 3);
    for (count = (int64_t)done; count < 3; count += some) {
        some = sakia_queue_wait(queue, results + count, 4 - (size_t)count, -1);
        CHECK(some >= 0);
    }
    verify(results, &byte, &facts);
    CHECK(sakia_queue_submit(queue, requests + 3, 1, results, &done) == -EFAULT && done == 0);
    CHECK(sakia_queue_free(queue) == 0);
    sakia_file_unref(file);
    puts("older: ok");
    return 0;
}

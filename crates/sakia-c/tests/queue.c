/* Queues: requests of several threads, each answered once; ends, forks, and hostile calls. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sakia.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(int is_true, const char *text, int line) {
    if (!is_true) {
        fprintf(stderr, "queue.c:%d: %s (last error: %s)\n", line, text, sakia_last_error());
        exit(1);
    }
}

#define CHECK(condition) check((condition), #condition, __LINE__)

/* Ends a forked child. As another program, since a checker of leaks would miss those threads of the parent
 * that own its memory. */
static void end_child(void) {
    execlp("true", "true", (char *)NULL);
    _exit(1);
}

static sakia_queue *new_queue(uint32_t threads, uint32_t under_way_max) {
    sakia_queue_options options = SAKIA_QUEUE_OPTIONS;
    sakia_queue *queue;
    options.threads = threads;
    options.under_way_max = under_way_max;
    CHECK(sakia_queue_new(&options, &queue) == 0);
    return queue;
}

static sakia_request request_of(uint32_t op, sakia_file *file, uint64_t token) {
    sakia_request request;
    memset(&request, 0, sizeof request);
    request.op = op;
    request.file = file;
    request.token = token;
    return request;
}

static sakia_request read_of(sakia_file *file, void *buf, size_t len, uint64_t offset, uint64_t token) {
    sakia_request request = request_of(SAKIA_OP_READ, file, token);
    request.buf = buf;
    request.len = len;
    request.offset = offset;
    return request;
}

static sakia_result perform(sakia_queue *queue, sakia_request request) {
    sakia_result result;
    size_t done;
    CHECK(sakia_queue_submit(queue, &request, 1, &result, &done) == 1);
    CHECK((done == 1) == (request.ticket == 0));
    if (done == 0) {
        int64_t count;
        do {
            count = sakia_queue_wait(queue, &result, 1, -1);
        } while (count == 0);
        CHECK(count == 1);
    }
    CHECK(result.token == request.token && result.flags == 0);
    return result;
}

static sakia_file *pipe_of(int *writer) {
    int fds[2];
    sakia_file *file;
    CHECK(pipe2(fds, O_CLOEXEC) == 0 && sakia_file_adopt(fds[0], &file) == 0);
    *writer = fds[1];
    return file;
}

/* Any number is a token, and results are written where the request said. */
static void files(sakia_queue *queue, const char *path) {
    static const uint64_t tokens[] = {0, 1, UINT64_C(1) << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        struct stat expected;
        unsigned char statx_buf[256], bytes[6] = {0}, ends[2][3];
        struct iovec parts[2] = {{ends[0], 3}, {ends[1], 3}};
        sakia_request request = request_of(SAKIA_OP_OPEN, NULL, tokens[i]);
        request.path = path;
        request.flags = O_RDWR | O_CREAT | O_TRUNC;
        request.arg[0] = 0600;
        sakia_file *file = perform(queue, request).file;
        CHECK(file != NULL);
        request = request_of(SAKIA_OP_WRITE, file, tokens[i]);
        request.buf = (void *)"abcdef";
        request.len = 6;
        CHECK(perform(queue, request).value == 6);
        CHECK(perform(queue, read_of(file, bytes, 6, 0, tokens[i])).value == 6);
        CHECK(memcmp(bytes, "abcdef", 6) == 0);
        request = request_of(SAKIA_OP_READV, file, tokens[i]);
        request.buf = parts;
        request.len = 2;
        CHECK(perform(queue, request).value == 6);
        CHECK(memcmp(ends[0], "abc", 3) == 0 && memcmp(ends[1], "def", 3) == 0);
        request = request_of(SAKIA_OP_STAT, file, tokens[i]);
        request.buf = statx_buf;
        request.len = sizeof statx_buf;
        CHECK(perform(queue, request).value == 0 && stat(path, &expected) == 0);
        uint64_t inode, size;
        memcpy(&inode, statx_buf + 32, 8);
        memcpy(&size, statx_buf + 40, 8);
        CHECK(inode == expected.st_ino && size == 6);
        CHECK(perform(queue, request_of(SAKIA_OP_CLOSE, file, tokens[i])).value == 0);
        CHECK(perform(queue, read_of(file, bytes, 6, 0, tokens[i])).value == -EBADF);
        sakia_file_unref(file);
    }
    CHECK(unlink(path) == 0);
}

/* Four threads submit, cancel and take. */
#define THREADS 4
#define STEPS 4000

struct shared {
    sakia_queue *queue;
    sakia_file *endless, *file;
    pthread_mutex_t lock;
    unsigned char answers[THREADS * STEPS];
    uint64_t answered, canceled;
};

static struct shared shared;

static void count_results(const sakia_result *results, int64_t count) {
    CHECK(count >= 0);
    pthread_mutex_lock(&shared.lock);
    for (int64_t i = 0; i < count; i++) {
        uint64_t token = ~results[i].token;
        CHECK(token < THREADS * STEPS && ++shared.answers[token] == 1);
        CHECK(results[i].value >= 0 || results[i].value == -ECANCELED);
        shared.answered++;
        shared.canceled += results[i].value == -ECANCELED;
    }
    pthread_mutex_unlock(&shared.lock);
}

static void *submitter(void *argument) {
    uint64_t first = (uint64_t)(uintptr_t)argument * STEPS;
    uint64_t random = first * 2 + 12345;
    unsigned char (*memory)[16] = (unsigned char (*)[16])calloc(STEPS, 16);
    CHECK(memory != NULL);
    for (uint64_t step = 0; step < STEPS;) {
        sakia_request requests[4];
        sakia_result results[16];
        size_t count = 0, done;
        for (; count < 4 && step < STEPS; count++, step++) {
            uint64_t token = ~(first + step);
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407U;
            switch (random >> 61) {
            case 0:
            case 1:
            case 2:
                requests[count] = read_of(shared.endless, memory[step], 16, SAKIA_CURRENT_POSITION, token);
                break;
            case 3:
            case 4:
                requests[count] = read_of(shared.file, memory[step], 16, 0, token);
                break;
            case 5:
                requests[count] = request_of(SAKIA_OP_SYNC, shared.file, token);
                break;
            default:
                requests[count] = request_of(SAKIA_OP_NOP, NULL, token);
            }
        }
        for (size_t sent = 0; sent < count;) {
            int64_t more =
                sakia_queue_submit(shared.queue, requests + sent, count - sent, results, &done);
            if (more == -EAGAIN) { /* the bound */
                int64_t taken = sakia_queue_wait(shared.queue, results, 16, 1000000);
                count_results(results, taken);
                continue;
            }
            CHECK(more > 0);
            count_results(results, (int64_t)done);
            for (int64_t i = 0; i < more; i++) {
                sakia_request *request = &requests[sent + (size_t)i];
                if (request->ticket != 0
                    && (request->file == shared.endless || request->token % 3 == 0)) {
                    CHECK(sakia_queue_cancel(shared.queue, request->ticket) == 0);
                }
            }
            sent += (size_t)more;
        }
        count_results(results, sakia_queue_take(shared.queue, results, 7));
    }
    for (;;) {
        sakia_result results[32];
        pthread_mutex_lock(&shared.lock);
        int is_over = shared.answered == THREADS * STEPS;
        pthread_mutex_unlock(&shared.lock);
        if (is_over) {
            break;
        }
        count_results(results, sakia_queue_wait(shared.queue, results, 32, 5000000));
    }
    free(memory);
    return NULL;
}

static void threads(const char *path) {
    int writer;
    pthread_t ids[THREADS];
    memset(&shared, 0, sizeof shared);
    CHECK(pthread_mutex_init(&shared.lock, NULL) == 0);
    shared.queue = new_queue(2, 64);
    shared.endless = pipe_of(&writer);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, "0123456789abcdef", 16) == 16 && sakia_file_adopt(fd, &shared.file) == 0);
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&ids[i], NULL, submitter, (void *)i) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(ids[i], NULL) == 0);
    }
    CHECK(sakia_queue_under_way(shared.queue) == 0 && shared.answered == THREADS * STEPS);
    CHECK(shared.canceled * 5 > shared.answered);
    CHECK(sakia_queue_free(shared.queue) == 0);
    sakia_file_unref(shared.endless);
    sakia_file_unref(shared.file);
    CHECK(close(writer) == 0 && unlink(path) == 0);
}

/* Waits end by wakes of signal handlers, and the descriptor tells of them. */
static sakia_waker *waker;

static void on_signal(int number) {
    (void)number;
    sakia_waker_wake(waker);
}

static void wakes(sakia_queue *queue) {
    sakia_result result;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    CHECK(sakia_queue_waker(queue, &waker) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    for (int i = 0; i < 1000; i++) {
        CHECK(raise(SIGUSR1) == 0);
        CHECK(sakia_queue_wait(queue, &result, 1, -1) == 0);
    }
    struct pollfd event = {sakia_queue_pollable(queue), POLLIN, 0};
    CHECK(event.fd >= 0 && poll(&event, 1, 0) == 0);
    CHECK(raise(SIGUSR1) == 0 && poll(&event, 1, 0) == 1);
    CHECK(sakia_queue_wait(queue, &result, 1, 0) == 0 && poll(&event, 1, 0) == 0);
    sakia_request nop = request_of(SAKIA_OP_NOP, NULL, 9);
    size_t done;
    CHECK(sakia_queue_submit(queue, &nop, 1, &result, &done) == 1 && done == 0);
    CHECK(poll(&event, 1, -1) == 1 && sakia_queue_take(queue, &result, 1) == 1 && result.token == 9);
    CHECK(poll(&event, 1, 0) == 0 && close(event.fd) == 0);
    /* Harmless after the end. */
    CHECK(sakia_queue_stop(queue, -1, NULL, 0) == 0 && sakia_queue_free(queue) == 0);
    sakia_waker_wake(waker);
    sakia_waker_free(waker);
}

/* The threads of the library handle no signals. */
static pid_t handled_by;

static void note_thread(int number) {
    (void)number;
    handled_by = (pid_t)syscall(SYS_gettid);
}

static void signals(void) {
    sigset_t all, old;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = note_thread;
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    sakia_queue *queue = new_queue(2, 0);
    CHECK(perform(queue, request_of(SAKIA_OP_NOP, NULL, 1)).value == 0);
    CHECK(sigfillset(&all) == 0 && pthread_sigmask(SIG_BLOCK, &all, &old) == 0);
    CHECK(kill(getpid(), SIGUSR2) == 0);
    for (uint64_t i = 0; i < 50; i++) {
        CHECK(perform(queue, request_of(SAKIA_OP_NOP, NULL, i)).value == 0);
    }
    CHECK(handled_by == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0 && handled_by == getpid());
    CHECK(sakia_queue_free(queue) == 0);
}

static void ends(void) {
    int writer, status;
    unsigned char memory[4][8];
    sakia_result results[4];
    uint64_t leaked[4];
    size_t done;
    sakia_queue *queue = new_queue(1, 3);
    sakia_file *file = pipe_of(&writer);
    sakia_request requests[4];
    for (uint64_t i = 0; i < 4; i++) {
        requests[i] = read_of(file, memory[i], 8, SAKIA_CURRENT_POSITION, i);
    }
    /* The bound: nobody takes. */
    CHECK(sakia_queue_submit(queue, requests, 4, results, &done) == 3 && done == 0);
    CHECK(sakia_queue_submit(queue, requests + 3, 1, results, &done) == -EAGAIN);
    CHECK(sakia_queue_under_way(queue) == 3);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(sakia_queue_submit(queue, requests, 1, results, &done) == -EPERM);
        CHECK(sakia_queue_wait(queue, results, 1, -1) == -EPERM);
        CHECK(sakia_queue_take(queue, results, 1) == -EPERM);
        CHECK(sakia_queue_cancel(queue, requests[0].ticket) == -EPERM);
        CHECK(sakia_queue_stop(queue, -1, NULL, 0) == -EPERM && sakia_queue_free(queue) == -EPERM);
        CHECK(strstr(sakia_last_error(), "parent") != NULL);
        sakia_queue *own = new_queue(1, 0);
        CHECK(perform(own, request_of(SAKIA_OP_NOP, NULL, 4)).value == 0);
        CHECK(sakia_queue_free(own) == 0);
        end_child();
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(write(writer, "12345678", 8) == 8);
    CHECK(sakia_queue_wait(queue, results, 1, -1) == 1 && results[0].value == 8);
    CHECK(sakia_queue_stop(queue, -1, leaked, 4) == 0);
    CHECK(sakia_queue_take(queue, results, 4) == 2 && results[1].value == -ECANCELED);
    CHECK(sakia_queue_submit(queue, requests, 1, results, &done) == 1 && done == 1);
    CHECK(results[0].value == -ECANCELED && sakia_queue_free(queue) == 0);
    sakia_file_unref(file);
    CHECK(close(writer) == 0);
}

static void hostile(sakia_queue *queue) {
    sakia_queue_options options = SAKIA_QUEUE_OPTIONS;
    sakia_queue *none;
    sakia_result result;
    sakia_request nop = request_of(SAKIA_OP_NOP, NULL, 0), unknown = request_of(9999, NULL, 0);
    size_t done;
    CHECK(sakia_queue_new(NULL, &none) == -EFAULT && sakia_queue_new(&options, NULL) == -EFAULT);
    options.threads = 65;
    CHECK(sakia_queue_new(&options, &none) == -EINVAL && none == NULL);
    options.threads = 1;
    options.flags = 8;
    CHECK(sakia_queue_new(&options, &none) == -EINVAL);
    options.flags = SAKIA_RING_ONLY | SAKIA_NO_RING;
    CHECK(sakia_queue_new(&options, &none) == -EINVAL);
    options.flags = 0;
    options.reserved = 1;
    CHECK(sakia_queue_new(&options, &none) == -EINVAL);
    options.reserved = 0;
    options.size = 8;
    CHECK(sakia_queue_new(&options, &none) == -EINVAL);
    CHECK(sakia_queue_submit(NULL, &nop, 1, &result, &done) == -EFAULT);
    CHECK(sakia_queue_submit(queue, NULL, 1, &result, &done) == -EFAULT);
    CHECK(sakia_queue_submit(queue, &nop, 1, NULL, &done) == -EFAULT);
    CHECK(sakia_queue_submit(queue, &nop, 1, &result, NULL) == -EFAULT);
    CHECK(sakia_queue_submit(queue, &nop, 0, &result, &done) == -EINVAL);
    CHECK(sakia_queue_submit(queue, &unknown, 1, &result, &done) == -EINVAL);
    CHECK(strstr(sakia_last_error(), "9999") != NULL);
    static const uint32_t goes_on[] = {SAKIA_OP_ACCEPT_MANY, SAKIA_OP_POLL_MANY, SAKIA_OP_RECEIVE_MANY};
    unknown.options = SAKIA_BY_FD; /* of standard input */
    for (int i = 0; i < 3; i++) {
        unknown.op = goes_on[i];
        CHECK(sakia_queue_submit(queue, &unknown, 1, &result, &done) == -EINVAL);
        CHECK(strstr(sakia_last_error(), "goes on") != NULL);
    }
    CHECK(sakia_queue_take(queue, NULL, 1) == -EFAULT && sakia_queue_take(queue, &result, 0) == -EINVAL);
    CHECK(sakia_queue_wait(queue, NULL, 1, 0) == -EFAULT && sakia_queue_wait(NULL, &result, 1, 0) == -EFAULT);
    CHECK(sakia_queue_cancel(queue, 0) == 0 && sakia_queue_cancel(queue, UINT64_MAX) == 0);
    CHECK(sakia_queue_waker(queue, NULL) == -EFAULT && sakia_queue_stop(queue, 0, NULL, 1) == -EFAULT);
    CHECK(sakia_queue_free(NULL) == 0 && sakia_queue_why_no_ring(NULL) == NULL);
    CHECK(sakia_queue_free(queue) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        return 2;
    }
    sakia_queue *queue = new_queue(2, 0);
    int has_ring = sakia_queue_why_no_ring(queue) == NULL;
    const char *driver = getenv("SAKIA_DRIVER");
    CHECK(driver == NULL || strcmp(driver, "poll") != 0 || !has_ring);
    files(queue, argv[1]);
    wakes(queue);
    threads(argv[1]);
    signals();
    ends();
    hostile(new_queue(1, 0));
    puts("queue: ok");
    return 0;
}

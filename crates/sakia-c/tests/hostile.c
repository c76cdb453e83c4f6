/* What a program does wrong, and the library finds: each call is an error with a text, and nothing breaks. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sakia.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(int is_true, const char *text, int line) {
    if (!is_true) {
        fprintf(stderr, "hostile.c:%d: %s (last error: %s)\n", line, text, sakia_last_error());
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

/* The call returns this error, and there is a text. */
#define REFUSED(call, errno_) \
    check((int64_t)(call) == -(errno_) && sakia_last_error()[0] != 0, #call, __LINE__)

static sakia_request request_of(uint32_t op) {
    sakia_request request;
    memset(&request, 0, sizeof request);
    request.op = op;
    return request;
}

static int64_t submit(sakia_loop *loop, sakia_request request) {
    return sakia_loop_submit(loop, &request, 1, NULL, NULL);
}

static sakia_result next(sakia_loop *loop) {
    sakia_result result;
    int64_t count;
    do {
        count = sakia_loop_wait(loop, &result, 1, -1);
    } while (count == 0);
    CHECK(count == 1);
    return result;
}

static sakia_result perform(sakia_loop *loop, sakia_request request) {
    CHECK(submit(loop, request) == 1);
    return next(loop);
}

static void null_handles(sakia_loop *loop) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    sakia_loop *made;
    sakia_request request = request_of(SAKIA_OP_NOP);
    sakia_result result;
    sakia_file *file;
    char byte = 0, facts[256];
    REFUSED(sakia_loop_new(NULL, &made), EFAULT);
    REFUSED(sakia_loop_new(&options, NULL), EFAULT);
    REFUSED(sakia_loop_submit(NULL, &request, 1, NULL, NULL), EFAULT);
    REFUSED(sakia_loop_submit(loop, NULL, 1, NULL, NULL), EFAULT);
    REFUSED(sakia_loop_take(NULL, &result, 1), EFAULT);
    REFUSED(sakia_loop_take(loop, NULL, 1), EFAULT);
    REFUSED(sakia_loop_wait(NULL, &result, 1, 0), EFAULT);
    REFUSED(sakia_loop_wait(loop, NULL, 1, 0), EFAULT);
    REFUSED(sakia_loop_wait_masked(NULL, &result, 1, 0, NULL), EFAULT);
    REFUSED(sakia_loop_wait_masked(loop, NULL, 1, 0, NULL), EFAULT);
    REFUSED(sakia_loop_cancel(NULL, 1), EFAULT);
    REFUSED(sakia_loop_pollable(NULL), EFAULT);
    REFUSED(sakia_loop_under_way(NULL), EFAULT);
    REFUSED(sakia_loop_stop(NULL, 0, NULL, 0), EFAULT);
    REFUSED(sakia_loop_stop(loop, 0, NULL, 1), EFAULT);
    REFUSED(sakia_loop_waker(loop, NULL), EFAULT);
    REFUSED(sakia_file_adopt(0, NULL), EFAULT);
    REFUSED(sakia_file_duplicate(0, NULL), EFAULT);
    REFUSED(sakia_file_number(NULL), EFAULT);
    REFUSED(sakia_try_read(NULL, (uint8_t *)&byte, 1, 0), EFAULT);
    REFUSED(sakia_try_write(NULL, (const uint8_t *)&byte, 1, 0), EFAULT);
    REFUSED(sakia_try_recv(NULL, (uint8_t *)&byte, 1, 0), EFAULT);
    REFUSED(sakia_try_send(NULL, (const uint8_t *)&byte, 1, 0), EFAULT);
    REFUSED(sakia_try_stat(NULL, NULL, 0, facts, sizeof facts), EFAULT);
    REFUSED(sakia_try_stat(NULL, "/", 0, NULL, sizeof facts), EFAULT);
    REFUSED(sakia_try_open(NULL, "/", O_RDONLY, 0, NULL), EFAULT);
    REFUSED(sakia_try_open(NULL, NULL, O_RDONLY, 0, &file), EFAULT);
    CHECK(file == NULL);
    CHECK(sakia_why_no_ring(NULL) == NULL);
    CHECK(sakia_loop_free(NULL) == 0);
    CHECK(sakia_file_ref(NULL) == NULL && sakia_waker_clone(NULL) == NULL);
    sakia_file_unref(NULL);
    sakia_waker_wake(NULL);
    sakia_waker_free(NULL);
}

static void sizes(sakia_loop *loop, sakia_file *file) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    sakia_loop *made;
    sakia_request request = request_of(SAKIA_OP_NOP);
    sakia_result result;
    struct iovec part = {NULL, 1};
    char memory[300];
    uint32_t op;

    options.size = 16;
    REFUSED(sakia_loop_new(&options, &made), EINVAL);
    options.size = sizeof options - 4;
    REFUSED(sakia_loop_new(&options, &made), EINVAL);
    options.size = (size_t)1 << 40;
    REFUSED(sakia_loop_new(&options, &made), EINVAL);
    options.size = sizeof options;
    options.request_size = 56;
    REFUSED(sakia_loop_new(&options, &made), EINVAL);
    options.request_size = sizeof(sakia_request) + 1;
    REFUSED(sakia_loop_new(&options, &made), EINVAL);
    options.request_size = sizeof(sakia_request);
    options.result_size = 24;
    REFUSED(sakia_loop_new(&options, &made), EINVAL);
    options.result_size = sizeof(sakia_result);
    options.flags = 0x80;
    REFUSED(sakia_loop_new(&options, &made), EINVAL);
    options.flags = SAKIA_RING_ONLY | SAKIA_NO_RING;
    REFUSED(sakia_loop_new(&options, &made), EINVAL);
    CHECK(made == NULL);

    REFUSED(sakia_loop_submit(loop, &request, 0, NULL, NULL), EINVAL);
    REFUSED(sakia_loop_submit(loop, &request, SIZE_MAX, NULL, NULL), EINVAL);
    REFUSED(sakia_loop_take(loop, &result, 0), EINVAL);
    REFUSED(sakia_loop_wait(loop, &result, 0, 0), EINVAL);
    REFUSED(sakia_try_read(file, (uint8_t *)memory, 0, 0), EINVAL);
    REFUSED(sakia_try_read(file, (uint8_t *)memory, SIZE_MAX, 0), EINVAL);
    REFUSED(sakia_try_read(file, NULL, 1, 0), EFAULT);
    REFUSED(sakia_try_recv(file, (uint8_t *)memory, 0, 0), EINVAL);
    REFUSED(sakia_try_recv(file, NULL, 1, 0), EFAULT);
    REFUSED(sakia_try_recv(file, (uint8_t *)memory, 8, 1 << 30), EINVAL);
    REFUSED(sakia_try_recv(file, (uint8_t *)memory, 8, 0), ENOTSOCK);
    REFUSED(sakia_try_send(file, (uint8_t *)memory, SIZE_MAX, 0), EINVAL);
    REFUSED(sakia_try_send(file, NULL, 1, 0), EFAULT);
    REFUSED(sakia_try_send(file, (uint8_t *)memory, 0, 0), ENOTSOCK);
    REFUSED(sakia_try_stat(file, NULL, 0, memory, 255), EINVAL);
    REFUSED(sakia_try_stat(file, NULL, 1, memory, 256), EINVAL);
    REFUSED(sakia_try_stat(NULL, "/", 1 << 30, memory, 256), EINVAL);

    /* Every operation, with nothing: no crash, and a result for each that was accepted. */
    for (op = 0; op < 64; op++) {
        int64_t accepted = submit(loop, request_of(op));
        CHECK(accepted == 1 || (accepted < 0 && sakia_last_error()[0] != 0));
        if (accepted == 1) {
            sakia_result taken = next(loop);
            CHECK(taken.file == NULL || taken.value >= 0);
            sakia_file_unref(taken.file);
        }
        /* Also with a file, and memory at null. */
        request = request_of(op);
        request.file = file;
        request.len = 1;
        accepted = submit(loop, request);
        CHECK(accepted == 1 || accepted < 0);
        if (op == SAKIA_OP_READ || op == SAKIA_OP_WRITE || op == SAKIA_OP_SEND) {
            CHECK(accepted == -EFAULT);
        }
        if (accepted == 1 && (op == SAKIA_OP_ACCEPT_MANY || op == SAKIA_OP_POLL || op == SAKIA_OP_CLOSE)) {
            /* It ends with an error here, or is the close of the next test. */
            sakia_result taken = next(loop);
            CHECK((taken.flags & SAKIA_MORE) == 0);
            if (op == SAKIA_OP_CLOSE) {
                CHECK(taken.value == 0);
                return;
            }
        } else if (accepted == 1) {
            next(loop);
        }
    }
    (void)part;
}

static void fields(sakia_loop *loop, sakia_file *file) {
    struct iovec parts[2] = {{NULL, 1}, {NULL, 0}};
    struct msghdr message;
    char memory[300];
    sakia_request request;

    memset(&message, 0, sizeof message);
    REFUSED(submit(loop, request_of(999)), EINVAL);
    request = request_of(SAKIA_OP_NOP);
    request.flags = 1;
    REFUSED(submit(loop, request), EINVAL);
    request.flags = 0;
    request.options = 0x100;
    REFUSED(submit(loop, request), EINVAL);

    request = request_of(SAKIA_OP_READ);
    request.buf = memory;
    request.len = 8;
    REFUSED(submit(loop, request), EBADF);
    request.file = file;
    request.len = SIZE_MAX;
    REFUSED(submit(loop, request), EINVAL);
    request.len = (size_t)1 << 63;
    REFUSED(submit(loop, request), EINVAL);

    request = request_of(SAKIA_OP_READV);
    request.file = file;
    request.len = 2;
    REFUSED(submit(loop, request), EFAULT);
    request.buf = parts;
    REFUSED(submit(loop, request), EFAULT);
    request.len = 100000;
    REFUSED(submit(loop, request), EINVAL);

    REFUSED(submit(loop, request_of(SAKIA_OP_OPEN)), EFAULT);
    request = request_of(SAKIA_OP_RENAME);
    request.path = "a";
    REFUSED(submit(loop, request), EFAULT);
    request = request_of(SAKIA_OP_STAT);
    request.path = "/";
    REFUSED(submit(loop, request), EFAULT);
    request.buf = memory;
    request.len = 255;
    REFUSED(submit(loop, request), EINVAL);
    request = request_of(SAKIA_OP_CONNECT);
    request.file = file;
    REFUSED(submit(loop, request), EINVAL);
    memset(memory, 0, sizeof memory);
    request.buf = memory;
    request.len = 16;
    REFUSED(submit(loop, request), EAFNOSUPPORT);
    memory[0] = AF_INET6;
    REFUSED(submit(loop, request), EINVAL);
    request = request_of(SAKIA_OP_SHUTDOWN);
    request.file = file;
    request.arg[0] = 9;
    REFUSED(submit(loop, request), EINVAL);
    request = request_of(SAKIA_OP_SEND_MESSAGE);
    request.file = file;
    REFUSED(submit(loop, request), EFAULT);
    request.buf = &message;
    request.len = 8;
    REFUSED(submit(loop, request), EINVAL);
    request.len = sizeof message;
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    REFUSED(submit(loop, request), EOPNOTSUPP);
    message.msg_iovlen = 0;
    message.msg_control = memory;
    memset(memory, 1, sizeof memory);
    message.msg_controllen = 64;
    REFUSED(submit(loop, request), EINVAL);
    message.msg_controllen = SIZE_MAX;
    REFUSED(submit(loop, request), EINVAL);
    CHECK(sakia_loop_under_way(loop) == 0);
}

static void tickets(sakia_loop *loop) {
    sakia_request request = request_of(SAKIA_OP_NOP);
    sakia_result result;
    uint64_t random = 88172645463325252u;
    int i;
    CHECK(sakia_loop_submit(loop, &request, 1, NULL, NULL) == 1);
    next(loop);
    /* Used up; those of nothing; and any number. */
    CHECK(sakia_loop_cancel(loop, request.ticket) == 0);
    CHECK(sakia_loop_cancel(loop, request.ticket) == 0);
    CHECK(sakia_loop_cancel(loop, 0) == 0 && sakia_loop_cancel(loop, UINT64_MAX) == 0);
    for (i = 0; i < 10000; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        CHECK(sakia_loop_cancel(loop, random) == 0);
    }
    CHECK(sakia_loop_wait(loop, &result, 1, 0) == 0);
}

static void descriptors(sakia_loop *loop) {
    sakia_file *file;
    sakia_request request = request_of(SAKIA_OP_READ);
    sakia_file *other;
    char byte, facts[256];
    int fd = open("/dev/null", O_RDONLY);
    CHECK(fd >= 0 && close(fd) == 0);
    REFUSED(sakia_file_adopt(fd, &file), EBADF);
    CHECK(file == NULL);
    REFUSED(sakia_file_adopt(-1, &file), EBADF);
    REFUSED(sakia_file_duplicate(fd, &file), EBADF);
    REFUSED(sakia_file_duplicate(-100, &file), EBADF);
    /* By number, which is a result. */
    request.options = SAKIA_BY_FD;
    request.buf = &byte;
    request.len = 1;
    request.fd = -1;
    CHECK(perform(loop, request).value == -EBADF);
    request.fd = fd;
    CHECK(perform(loop, request).value == -EBADF);
    /* Of a file that is closed, and closed again. */
    CHECK(sakia_file_adopt(open("/dev/null", O_RDONLY), &file) == 0);
    request = request_of(SAKIA_OP_CLOSE);
    request.file = file;
    CHECK(perform(loop, request).value == 0);
    CHECK(perform(loop, request).value == -EBADF);
    request.op = SAKIA_OP_READ;
    request.buf = &byte;
    request.len = 1;
    CHECK(perform(loop, request).value == -EBADF);
    REFUSED(sakia_try_read(file, (uint8_t *)&byte, 1, 0), EBADF);
    REFUSED(sakia_try_recv(file, (uint8_t *)&byte, 1, 0), EBADF);
    REFUSED(sakia_try_send(file, (uint8_t *)&byte, 1, 0), EBADF);
    REFUSED(sakia_try_stat(file, NULL, 0, facts, sizeof facts), EBADF);
    REFUSED(sakia_try_stat(file, "/", 0, facts, sizeof facts), EBADF);
    REFUSED(sakia_try_open(file, "/", O_RDONLY, 0, &other), EBADF);
    CHECK(other == NULL);
    sakia_file_unref(file);
    request = request_of(SAKIA_OP_CLOSE);
    request.options = SAKIA_BY_FD;
    REFUSED(submit(loop, request), EINVAL);
}

static void bounds(void) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    sakia_loop *loop;
    sakia_request requests[4];
    sakia_result results[4];
    size_t done = 99;
    int i;
    options.under_way_max = 2;
    CHECK(sakia_loop_new(&options, &loop) == 0);
    for (i = 0; i < 4; i++) {
        requests[i] = request_of(SAKIA_OP_NOP);
    }
    CHECK(sakia_loop_submit(loop, requests, 4, results, &done) == 2 && done == 0);
    REFUSED(sakia_loop_submit(loop, requests + 2, 2, results, &done), EAGAIN);
    requests[2] = request_of(SAKIA_OP_SOCKET);
    REFUSED(sakia_loop_submit(loop, requests + 2, 1, results, &done), EAGAIN);
    next(loop);
    next(loop);
    /* The second one is refused, so the first one is accepted alone. */
    requests[1].op = 999;
    CHECK(sakia_loop_submit(loop, requests, 2, NULL, NULL) == 1);
    REFUSED(sakia_loop_submit(loop, requests + 1, 1, NULL, NULL), EINVAL);
    next(loop);
    CHECK(sakia_loop_free(loop) == 0);
}

/* A program with a shorter request, and one with longer structures. */
static void strides(void) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    sakia_loop *loop;
    struct {
        sakia_request request;
        uint64_t more;
    } longer[2];
    struct {
        sakia_result result;
        uint64_t more;
    } results[2];
    struct {
        sakia_loop_options options;
        uint64_t more;
    } newer = {SAKIA_LOOP_OPTIONS, 1};
    unsigned char shorter[3 * 64];
    char bytes[2] = {0, 0};
    sakia_request request;
    int64_t count = 0;
    int fds[2], i;

    newer.options.size = sizeof newer;
    REFUSED(sakia_loop_new(&newer.options, &loop), EINVAL);
    newer.more = 0;
    CHECK(sakia_loop_new(&newer.options, &loop) == 0 && sakia_loop_free(loop) == 0);

    CHECK(pipe(fds) == 0 && write(fds[1], "ab", 2) == 2);
    options.request_size = 64;
    CHECK(sakia_loop_new(&options, &loop) == 0);
    memset(shorter, 0xff, sizeof shorter);
    for (i = 0; i < 2; i++) {
        request = request_of(SAKIA_OP_READ);
        request.options = SAKIA_BY_FD;
        request.fd = fds[0];
        request.buf = &bytes[i];
        request.len = 1;
        request.offset = SAKIA_CURRENT_POSITION;
        request.token = (uint64_t)i;
        memcpy(shorter + 64 * i, &request, 64);
    }
    CHECK(sakia_loop_submit(loop, (sakia_request *)(void *)shorter, 2, NULL, NULL) == 2);
    for (i = 0; i < 2; i++) {
        CHECK(next(loop).value == 1);
    }
    CHECK(bytes[0] + bytes[1] == 'a' + 'b');
    /* What follows is not its own. */
    for (i = 128; i < 192; i++) {
        CHECK(shorter[i] == 0xff);
    }
    CHECK(sakia_loop_free(loop) == 0);

    options.request_size = sizeof longer[0];
    options.result_size = sizeof results[0];
    CHECK(sakia_loop_new(&options, &loop) == 0);
    memset(longer, 0, sizeof longer);
    memset(results, 0xff, sizeof results);
    longer[0].request.token = 5;
    longer[1].request.token = 6;
    CHECK(sakia_loop_submit(loop, &longer[0].request, 2, NULL, NULL) == 2);
    while (count < 2) {
        int64_t some = sakia_loop_wait(loop, &results[count].result, 2 - (size_t)count, -1);
        CHECK(some >= 0);
        count += some;
    }
    CHECK(results[0].result.token + results[1].result.token == 11);
    CHECK(results[0].more == 0 && results[1].more == 0);
    longer[0].more = 1;
    REFUSED(sakia_loop_submit(loop, &longer[0].request, 1, NULL, NULL), EINVAL);
    CHECK(sakia_loop_free(loop) == 0);
    close(fds[0]);
    close(fds[1]);
}

static void *on_another_thread(void *argument) {
    sakia_loop *loop = (sakia_loop *)argument;
    sakia_result result;
    sakia_waker *waker;
    CHECK(sakia_last_error()[0] == 0);
    REFUSED(submit(loop, request_of(SAKIA_OP_NOP)), EPERM);
    REFUSED(sakia_loop_take(loop, &result, 1), EPERM);
    REFUSED(sakia_loop_wait(loop, &result, 1, 0), EPERM);
    REFUSED(sakia_loop_wait_masked(loop, &result, 1, 0, NULL), EPERM);
    REFUSED(sakia_loop_cancel(loop, 1), EPERM);
    REFUSED(sakia_loop_pollable(loop), EPERM);
    REFUSED(sakia_loop_waker(loop, &waker), EPERM);
    REFUSED(sakia_loop_stop(loop, 0, NULL, 0), EPERM);
    REFUSED(sakia_loop_free(loop), EPERM);
    return NULL;
}

static void threads(sakia_loop *loop) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, on_another_thread, loop) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void forks(sakia_loop *loop) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    sakia_waker *waker;
    int status;
    pid_t child;
    CHECK(sakia_loop_waker(loop, &waker) == 0);
    CHECK(submit(loop, request_of(SAKIA_OP_NOP)) == 1);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        sakia_loop *own;
        sakia_result result;
        REFUSED(submit(loop, request_of(SAKIA_OP_NOP)), EPERM);
        REFUSED(sakia_loop_wait(loop, &result, 1, -1), EPERM);
        REFUSED(sakia_loop_free(loop), EPERM);
        sakia_waker_wake(waker);
        CHECK(sakia_loop_new(&options, &own) == 0);
        CHECK(perform(own, request_of(SAKIA_OP_NOP)).value == 0);
        CHECK(sakia_loop_free(own) == 0);
        end_child();
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* The parent's loop has not seen any of it. */
    CHECK(next(loop).value == 0);
    sakia_waker_wake(waker);
    sakia_waker_free(waker);
}

/* Two owners, one after the other, and a loop after its stop. */
static void ends(void) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    sakia_loop *loop;
    sakia_waker *waker, *same;
    sakia_file *file;
    sakia_request request = request_of(SAKIA_OP_READ);
    sakia_result result;
    uint64_t leaked[1];
    char byte;
    int fds[2];
    CHECK(pipe(fds) == 0);
    CHECK(sakia_loop_new(&options, &loop) == 0);
    CHECK(sakia_loop_waker(loop, &waker) == 0);
    same = sakia_waker_clone(waker);
    CHECK(sakia_file_adopt(fds[0], &file) == 0 && sakia_file_number(file) == fds[0]);
    CHECK(sakia_file_ref(file) == file);
    sakia_file_unref(file);
    request.file = file;
    request.buf = &byte;
    request.len = 1;
    request.offset = SAKIA_CURRENT_POSITION;
    request.token = 3;
    CHECK(submit(loop, request) == 1);
    CHECK(sakia_loop_wait(loop, &result, 1, 0) == 0);
    sakia_file_unref(file); /* the request has its own */
    CHECK(sakia_loop_stop(loop, -1, leaked, 1) == 0);
    CHECK(sakia_loop_take(loop, &result, 1) == 1);
    CHECK(result.token == 3 && result.value == -ECANCELED);
    CHECK(submit(loop, request_of(SAKIA_OP_NOP)) == 1);
    CHECK(sakia_loop_take(loop, &result, 1) == 1 && result.value == -ECANCELED);
    CHECK(sakia_loop_stop(loop, 0, NULL, 0) == 0);
    CHECK(sakia_loop_free(loop) == 0);
    sakia_waker_wake(waker);
    sakia_waker_free(waker);
    sakia_waker_wake(same);
    sakia_waker_free(same);
    close(fds[1]);
}

int main(void) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    sakia_loop *loop;
    sakia_file *file;
    int fd = open("/dev/null", O_RDWR);
    CHECK(sakia_version() == SAKIA_VERSION);
    CHECK(sakia_loop_new(&options, &loop) == 0);
    CHECK(sakia_file_adopt(fd, &file) == 0);
    null_handles(loop);
    fields(loop, file);
    tickets(loop);
    descriptors(loop);
    bounds();
    strides();
    threads(loop);
    forks(loop);
    ends();
    sizes(loop, file);
    sakia_file_unref(file);
    CHECK(sakia_loop_free(loop) == 0);
    puts("hostile: ok");
    return 0;
}

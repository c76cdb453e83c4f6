/* Each operation does what its system call does. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sakia.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "request.h"

static void check(int is_true, const char *text, int line) {
    if (!is_true) {
        fprintf(stderr, "operations.c:%d: %s (last error: %s)\n", line, text, sakia_last_error());
        exit(1);
    }
}

#define CHECK(condition) check((condition), #condition, __LINE__)

static sakia_loop *loop;
static uint64_t token;

static sakia_result perform(sakia_request request) {
    sakia_result result;
    int64_t count;
    size_t done;
    request.token = ++token;
    CHECK(sakia_loop_submit(loop, &request, 1, &result, &done) == 1);
    count = (int64_t)done;
    /* What was copied may go. */
    memset(&request, 0xff, sizeof request);
    while (count == 0) {
        count = sakia_loop_wait(loop, &result, 1, -1);
    }
    CHECK(count == 1 && result.token == token && result.flags == 0);
    return result;
}

static int64_t with_memory(uint32_t op, sakia_file *file, void *buf, size_t len, uint64_t offset) {
    sakia_request request = request_of(op, file);
    request.buf = buf;
    request.len = len;
    request.offset = offset;
    return perform(request).value;
}

static int64_t with_path(uint32_t op, sakia_file *file, const char *path, uint32_t arg, uint32_t flags) {
    sakia_request request = request_of(op, file);
    request.path = path;
    request.arg[0] = arg;
    request.flags = flags;
    return perform(request).value;
}

static sakia_file *open_in(sakia_file *directory, const char *path, int flags) {
    sakia_request request = request_of(SAKIA_OP_OPEN, directory);
    sakia_result result;
    request.path = path;
    request.flags = (uint32_t)flags;
    request.arg[0] = (flags & O_CREAT) != 0 ? 0600 : 0;
    result = perform(request);
    CHECK(result.value == 0 && result.file != NULL);
    return result.file;
}

static void files(sakia_file *directory) {
    sakia_file *file = open_in(directory, "file", O_RDWR | O_CREAT), *copy;
    sakia_request request;
    struct statx facts;
    struct statfs system;
    struct timespec times[2] = {{0, UTIME_OMIT}, {1000000000, 5}};
    char head[4], tail[4];
    struct iovec parts[2] = {{head, 4}, {tail, 4}};

    CHECK(with_memory(SAKIA_OP_WRITE, file, (void *)(uintptr_t) "0123456789", 10, 0) == 10);
    CHECK(with_memory(SAKIA_OP_READ, file, head, 4, 3) == 4 && memcmp(head, "3456", 4) == 0);
    CHECK(with_memory(SAKIA_OP_READV, file, parts, 2, 2) == 8 && memcmp(tail, "6789", 4) == 0);
    CHECK(with_memory(SAKIA_OP_WRITEV, file, parts, 2, 10) == 8);
    CHECK(with_memory(SAKIA_OP_STAT, file, &facts, sizeof facts, 0) == 0 && facts.stx_size == 18);
    CHECK(with_memory(SAKIA_OP_STATFS, file, &system, sizeof system, 0) == 0 && system.f_bsize > 0);
    CHECK(perform(request_of(SAKIA_OP_SYNC, file)).value == 0);
    CHECK(with_memory(SAKIA_OP_TRUNCATE, file, NULL, 0, 5) == 0);
    request = request_of(SAKIA_OP_ALLOCATE, file);
    request.offset2 = 8192;
    CHECK(perform(request).value == 0);
    request.op = SAKIA_OP_ADVISE;
    request.flags = POSIX_FADV_WILLNEED;
    CHECK(perform(request).value == 0);
    request = request_of(SAKIA_OP_CHMOD, file);
    request.arg[0] = 0640;
    CHECK(perform(request).value == 0);
    CHECK(with_path(SAKIA_OP_CHMOD, directory, "file", 0644, 0) == 0);
    request = request_of(SAKIA_OP_CHOWN, file);
    request.arg[0] = request.arg[1] = UINT32_MAX;
    CHECK(perform(request).value == 0);
    CHECK(with_memory(SAKIA_OP_SET_TIMES, file, times, sizeof times, 0) == 0);
    request = request_of(SAKIA_OP_STAT, directory);
    request.path = "file";
    request.buf = &facts;
    request.len = sizeof facts;
    CHECK(perform(request).value == 0 && facts.stx_size == 8192);
    CHECK((facts.stx_mode & 0777) == 0644 && facts.stx_mtime.tv_sec == 1000000000);
    memset(&facts, 0, sizeof facts);
    request.path = "missing";
    CHECK(perform(request).value == -ENOENT && facts.stx_mask == 0);
    copy = open_in(directory, "copy", O_RDWR | O_CREAT);
    request = request_of(SAKIA_OP_COPY_RANGE, file);
    request.file2 = copy;
    request.len = 4;
    request.offset = 1;
    request.offset2 = 2;
    CHECK(perform(request).value == 4);
    CHECK(sakia_try_write(copy, (const uint8_t *)"ab", 2, 0) == 2 || sakia_last_error() != NULL);
    CHECK(with_memory(SAKIA_OP_READ, copy, tail, 4, 2) == 4 && memcmp(tail, "1234", 4) == 0);
    CHECK(perform(request_of(SAKIA_OP_CLOSE, copy)).value == 0);
    sakia_file_unref(copy);
    sakia_file_unref(file);
    CHECK(perform(request_of(SAKIA_OP_NOP, NULL)).value == 0);
}

static void names(sakia_file *directory) {
    sakia_request request;
    sakia_file *inner;
    char bytes[4096];
    int64_t count;
    int is_found = 0, at;
    CHECK(with_path(SAKIA_OP_MKDIR, directory, "inner", 0700, 0) == 0);
    request = request_of(SAKIA_OP_LINK, directory);
    request.path = "file";
    request.file2 = directory;
    request.path2 = "inner/linked";
    CHECK(perform(request).value == 0);
    inner = open_in(directory, "inner", O_RDONLY | O_DIRECTORY);
    request.op = SAKIA_OP_RENAME;
    request.file = inner;
    request.path = "linked";
    request.file2 = inner;
    request.path2 = "renamed";
    CHECK(perform(request).value == 0);
    request = request_of(SAKIA_OP_SYMLINK, inner);
    request.path = "symbolic";
    request.path2 = "renamed";
    CHECK(perform(request).value == 0);
    request = request_of(SAKIA_OP_READLINK, inner);
    request.path = "symbolic";
    request.buf = bytes;
    request.len = sizeof bytes;
    memset(bytes, 0x5a, sizeof bytes);
    CHECK(perform(request).value == 7 && memcmp(bytes, "renamedZZ", 9) == 0);
    request.len = 3;
    CHECK(perform(request).value == 3);
    count = with_memory(SAKIA_OP_READ_DIRECTORY, inner, bytes, sizeof bytes, 0);
    CHECK(count > 0);
    for (at = 0; at < count;) {
        unsigned short len;
        memcpy(&len, bytes + at + 16, sizeof len);
        is_found += strcmp(bytes + at + 19, "renamed") == 0;
        at += len;
    }
    CHECK(is_found == 1);
    CHECK(with_memory(SAKIA_OP_READ_DIRECTORY, inner, bytes, sizeof bytes, 0) == 0);
    CHECK(with_path(SAKIA_OP_UNLINK, inner, "symbolic", 0, 0) == 0);
    CHECK(with_path(SAKIA_OP_UNLINK, inner, "renamed", 0, 0) == 0);
    sakia_file_unref(inner);
    CHECK(with_path(SAKIA_OP_UNLINK, directory, "inner", 0, AT_REMOVEDIR) == 0);
    CHECK(with_path(SAKIA_OP_UNLINK, directory, "copy", 0, 0) == 0);
    CHECK(with_path(SAKIA_OP_UNLINK, directory, "file", 0, 0) == 0);
}

static sakia_file *make_socket(uint32_t domain, uint32_t type) {
    sakia_request request = request_of(SAKIA_OP_SOCKET, NULL);
    sakia_result result;
    request.arg[0] = domain;
    request.arg[1] = type;
    result = perform(request);
    CHECK(result.value == 0 && result.file != NULL);
    return result.file;
}

static sakia_file *bound(uint32_t type, struct sockaddr_in *address) {
    sakia_file *file = make_socket(AF_INET, type);
    socklen_t len = sizeof *address;
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(with_memory(SAKIA_OP_BIND, file, address, sizeof *address, 0) == 0);
    CHECK(getsockname(sakia_file_number(file), (struct sockaddr *)address, &len) == 0);
    return file;
}

static void streams(void) {
    struct sockaddr_in address, peer;
    sakia_file *listener = bound(SOCK_STREAM, &address), *client = make_socket(AF_INET, SOCK_STREAM);
    sakia_request request = request_of(SAKIA_OP_LISTEN, listener);
    sakia_result result;
    char bytes[8];
    uint64_t accepts;
    request.arg[0] = 8;
    CHECK(perform(request).value == 0);
    CHECK(with_memory(SAKIA_OP_CONNECT, client, &address, sizeof address, 0) == 0);
    request = request_of(SAKIA_OP_ACCEPT, listener);
    request.buf = &peer;
    request.len = sizeof peer;
    result = perform(request);
    CHECK(result.value == sizeof peer && result.file != NULL && peer.sin_family == AF_INET);
    CHECK(peer.sin_addr.s_addr == htonl(INADDR_LOOPBACK) && peer.sin_port != 0);
    CHECK(with_memory(SAKIA_OP_SEND, client, (void *)(uintptr_t) "hello", 5, 0) == 5);
    request = request_of(SAKIA_OP_POLL, result.file);
    request.flags = POLLIN;
    CHECK(perform(request).value == POLLIN);
    CHECK(with_memory(SAKIA_OP_RECEIVE, result.file, bytes, sizeof bytes, 0) == 5);
    CHECK(memcmp(bytes, "hello", 5) == 0);
    request = request_of(SAKIA_OP_SHUTDOWN, client);
    request.arg[0] = SHUT_WR;
    CHECK(perform(request).value == 0);
    CHECK(with_memory(SAKIA_OP_RECEIVE, result.file, bytes, sizeof bytes, 0) == 0);
    sakia_file_unref(result.file);
    sakia_file_unref(client);

    /* Several results of one request. */
    request = request_of(SAKIA_OP_ACCEPT_MANY, listener);
    request.token = 77;
    CHECK(sakia_loop_submit(loop, &request, 1, NULL, NULL) == 1);
    accepts = request.ticket;
    client = make_socket(AF_INET, SOCK_STREAM);
    CHECK(connect(sakia_file_number(client), (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(accepts != 0 && sakia_loop_under_way(loop) == 1);
    while (sakia_loop_wait(loop, &result, 1, -1) == 0) {
    }
    CHECK(result.token == 77 && (result.flags & SAKIA_MORE) != 0 && result.file != NULL);
    sakia_file_unref(result.file);
    CHECK(sakia_loop_cancel(loop, accepts) == 0);
    while (sakia_loop_wait(loop, &result, 1, -1) == 0) {
    }
    CHECK(result.token == 77 && result.flags == 0 && result.value == -ECANCELED);
    sakia_file_unref(client);
    sakia_file_unref(listener);
}

static void datagrams(void) {
    static char control[1 << 20];
    struct sockaddr_in address, from;
    sakia_file *one = bound(SOCK_DGRAM, &from), *other = bound(SOCK_DGRAM, &address);
    const struct sockaddr_in own = address;
    char bytes[8] = "data";
    struct iovec part = {bytes, 4};
    struct msghdr message;
    memset(&message, 0, sizeof message);
    message.msg_name = &address;
    message.msg_namelen = sizeof address;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    CHECK(with_memory(SAKIA_OP_SEND_MESSAGE, one, &message, sizeof message, 0) == 4);
    memset(bytes, 0, sizeof bytes);
    memset(&address, 0, sizeof address);
    part.iov_len = 2;
    CHECK(with_memory(SAKIA_OP_RECEIVE_MESSAGE, other, &message, sizeof message, 0) == 2);
    CHECK(memcmp(bytes, "da\0", 3) == 0 && (message.msg_flags & MSG_TRUNC) != 0);
    CHECK(message.msg_namelen == sizeof from && memcmp(&address, &from, sizeof from) == 0);
    CHECK(message.msg_controllen == 0);
    /* More room than a message can fill. */
    CHECK(connect(sakia_file_number(one), (struct sockaddr *)&own, sizeof own) == 0);
    CHECK(write(sakia_file_number(one), "more", 4) == 4);
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    CHECK(with_memory(SAKIA_OP_RECEIVE_MESSAGE, other, &message, sizeof message, 0) == 2);
    CHECK(message.msg_controllen == 0 && (message.msg_flags & MSG_CTRUNC) == 0);
    sakia_file_unref(one);
    sakia_file_unref(other);
}

/* A descriptor passes through, as with sendmsg(2). */
static void rights(void) {
    sakia_file *ends[2];
    char bytes[2] = "x", through;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {bytes, 1};
    struct msghdr message;
    struct cmsghdr *header;
    int fds[2], pair[2], received;
    CHECK(pipe(fds) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(sakia_file_adopt(pair[0], &ends[0]) == 0 && sakia_file_adopt(pair[1], &ends[1]) == 0);
    memset(&message, 0, sizeof message);
    memset(&control, 0, sizeof control);
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fds[1], sizeof(int));
    CHECK(with_memory(SAKIA_OP_SEND_MESSAGE, ends[0], &message, sizeof message, 0) == 1);
    close(fds[1]);
    memset(&control, 0, sizeof control);
    CHECK(with_memory(SAKIA_OP_RECEIVE_MESSAGE, ends[1], &message, sizeof message, 0) == 1);
    header = CMSG_FIRSTHDR(&message);
    CHECK(header != NULL && header->cmsg_type == SCM_RIGHTS && message.msg_flags == 0);
    CHECK(header->cmsg_len == CMSG_LEN(sizeof(int)) && CMSG_NXTHDR(&message, header) == NULL);
    memcpy(&received, CMSG_DATA(header), sizeof(int));
    CHECK(write(received, "y", 1) == 1 && read(fds[0], &through, 1) == 1 && through == 'y');
    close(received);
    /* No copy of it is left: the pipe has ended. */
    CHECK(read(fds[0], &through, 1) == 0);
    close(fds[0]);
    sakia_file_unref(ends[0]);
    sakia_file_unref(ends[1]);
}

static sakia_result next(void) {
    sakia_result result;
    while (sakia_loop_wait(loop, &result, 1, -1) == 0) {
    }
    return result;
}

/* Every number is a token: of what is done at once, of what is written when the result is taken, and of a
 * request with several results. */
static void tokens(sakia_file *directory) {
    static const uint64_t high = UINT64_C(1) << 63;
    const uint64_t all[6] = {0, 1, high - 1, high, high + 1, UINT64_MAX};
    const uint32_t operations[3] = {SAKIA_OP_NOP, SAKIA_OP_STAT, SAKIA_OP_READ};
    struct sockaddr_in address;
    sakia_file *listener = bound(SOCK_STREAM, &address), *client;
    sakia_request requests[18], request;
    sakia_result result;
    struct statx facts[18];
    int seen[6] = {0, 0, 0, 0, 0, 0}, i, j;
    memset(facts, 0, sizeof facts);
    for (i = 0; i < 18; i++) {
        requests[i] = request_of(operations[i / 6], i < 6 ? NULL : directory);
        requests[i].token = all[i % 6];
        if (i >= 6) {
            requests[i].buf = &facts[i];
            requests[i].len = sizeof facts[i];
        }
    }
    CHECK(sakia_loop_submit(loop, requests, 18, NULL, NULL) == 18);
    for (i = 0; i < 18; i++) {
        result = next();
        for (j = 0; j < 6 && all[j] != result.token; j++) {
        }
        CHECK(j < 6 && result.flags == 0 && (result.value == 0 || result.value == -EISDIR));
        seen[j]++;
    }
    for (j = 0; j < 6; j++) {
        CHECK(seen[j] == 3 && S_ISDIR(facts[6 + j].stx_mode));
    }
    request = request_of(SAKIA_OP_LISTEN, listener);
    request.arg[0] = 8;
    CHECK(perform(request).value == 0);
    request = request_of(SAKIA_OP_ACCEPT_MANY, listener);
    request.token = UINT64_MAX;
    CHECK(sakia_loop_submit(loop, &request, 1, NULL, NULL) == 1);
    for (i = 0; i < 4; i++) {
        client = make_socket(AF_INET, SOCK_STREAM);
        CHECK(connect(sakia_file_number(client), (struct sockaddr *)&address, sizeof address) == 0);
        result = next();
        CHECK(result.token == UINT64_MAX && result.flags == SAKIA_MORE && result.file != NULL);
        sakia_file_unref(result.file);
        sakia_file_unref(client);
    }
    CHECK(sakia_loop_cancel(loop, request.ticket) == 0);
    result = next();
    CHECK(result.token == UINT64_MAX && result.flags == 0 && result.value == -ECANCELED);
    CHECK(sakia_loop_under_way(loop) == 0);
    sakia_file_unref(listener);
}

static volatile sig_atomic_t handled;

static void handle(int signal) {
    (void)signal;
    handled++;
}

/* Signals that the thread blocks are handled in the wait, as far as its mask lets them through. */
static void signals(void) {
    int64_t timeouts[] = {0, 1, 2000000, INT64_MAX, -1};
    sigset_t own, blocked, mask, pending;
    struct sigaction action;
    sakia_result result;
    size_t i;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGUSR2, &action, NULL) == 0);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGUSR2);
    CHECK(pthread_sigmask(SIG_BLOCK, &blocked, &own) == 0);
    mask = own;
    sigaddset(&mask, SIGUSR2);
    for (i = 0; i < sizeof timeouts / sizeof timeouts[0]; i++) {
        handled = 0;
        CHECK(kill(getpid(), SIGUSR1) == 0 && kill(getpid(), SIGUSR2) == 0 && handled == 0);
        CHECK(sakia_loop_wait_masked(loop, &result, 1, 0, NULL) == 0 && handled == 0);
        CHECK(sakia_loop_wait_masked(loop, &result, 1, timeouts[i], &mask) == 0 && handled == 1);
        CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR2) == 1);
        CHECK(sakia_loop_wait_masked(loop, &result, 1, timeouts[i], &own) == 0 && handled == 2);
        CHECK(pthread_sigmask(SIG_BLOCK, NULL, &pending) == 0);
        CHECK(sigismember(&pending, SIGUSR1) == 1 && sigismember(&pending, SIGUSR2) == 1);
    }
    CHECK(pthread_sigmask(SIG_SETMASK, &own, NULL) == 0 && handled == 2);
}

/* Makes a call that never waits until it is made: the kernel may have dropped a name. */
#define MADE(call) \
    do { \
        for (tries = 0; tries < 1000 && (value = (call)) == -EAGAIN; tries++) { \
        } \
    } while (0)

/* What never waits, with the default action of SIGPIPE. */
static void attempts(sakia_file *directory) {
    sakia_file *file, *ends[2], *pipes[2];
    struct statx facts;
    struct stat expected;
    uint8_t bytes[8];
    int64_t value = 0;
    int fds[2], pair[2], tries;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pipe(fds) == 0);
    CHECK(sakia_file_adopt(pair[0], &ends[0]) == 0 && sakia_file_adopt(pair[1], &ends[1]) == 0);
    CHECK(sakia_file_adopt(fds[0], &pipes[0]) == 0 && sakia_file_adopt(fds[1], &pipes[1]) == 0);
    CHECK(sakia_try_recv(ends[0], bytes, sizeof bytes, 0) == -EAGAIN);
    CHECK(sakia_try_send(ends[1], (const uint8_t *)"hello", 5, 0) == 5);
    CHECK(sakia_try_recv(ends[0], bytes, sizeof bytes, MSG_PEEK) == 5);
    CHECK(sakia_try_recv(ends[0], bytes, sizeof bytes, 0) == 5 && memcmp(bytes, "hello", 5) == 0);
    CHECK(sakia_try_stat(ends[0], NULL, 0, &facts, sizeof facts) == 0 && S_ISSOCK(facts.stx_mode));
    sakia_file_unref(ends[1]);
    sakia_file_unref(pipes[0]);
    CHECK(sakia_try_recv(ends[0], bytes, sizeof bytes, 0) == 0);
    CHECK(sakia_try_send(ends[0], bytes, 1, 0) == -EPIPE);
    CHECK(sakia_try_write(ends[0], bytes, 1, SAKIA_CURRENT_POSITION) == -EPIPE);
    CHECK(sakia_try_write(pipes[1], bytes, 1, SAKIA_CURRENT_POSITION) == -EPIPE);
    sakia_file_unref(ends[0]);
    sakia_file_unref(pipes[1]);

    CHECK(fstat(sakia_file_number(directory), &expected) == 0);
    memset(&facts, 0x5a, sizeof facts);
    MADE(sakia_try_stat(directory, NULL, 0, &facts, sizeof facts));
    CHECK(value == 0 && facts.stx_ino == expected.st_ino && facts.stx_mode == expected.st_mode);
    file = open_in(directory, "tried", O_RDWR | O_CREAT);
    CHECK(with_memory(SAKIA_OP_WRITE, file, bytes, 5, 0) == 5);
    sakia_file_unref(file);
    memset(&facts, 0x5a, sizeof facts);
    MADE(sakia_try_stat(directory, "tried", AT_SYMLINK_NOFOLLOW, &facts, sizeof facts));
    if (value != -EAGAIN) { /* else an older kernel */
        CHECK(value == 0 && facts.stx_size == 5 && S_ISREG(facts.stx_mode));
        MADE(sakia_try_open(directory, "tried", O_RDONLY, 0, &file));
        CHECK(value == 0 && file != NULL && sakia_file_number(file) > 2);
        memset(bytes, 0, sizeof bytes);
        CHECK(with_memory(SAKIA_OP_READ, file, bytes, sizeof bytes, 0) == 5);
        CHECK(memcmp(bytes, "hello", 5) == 0);
        sakia_file_unref(file);
        MADE(sakia_try_open(directory, "tried/x", O_RDONLY, 0, &file));
        CHECK((value == -ENOTDIR || value == -EAGAIN) && file == NULL);
    }
    CHECK(sakia_try_open(directory, "tried", O_WRONLY | O_TRUNC, 0, &file) == -EAGAIN && file == NULL);
    CHECK(sakia_try_open(NULL, "/dev/null", O_RDONLY, 0, &file) == -EAGAIN && file == NULL);
    CHECK(with_path(SAKIA_OP_UNLINK, directory, "tried", 0, 0) == 0);
    MADE(sakia_try_stat(directory, "tried", 0, &facts, sizeof facts));
    CHECK(value == -ENOENT || value == -EAGAIN);
}

/* Readiness is told as long as it lasts, and received bytes are lent. */
static void lasting(void) {
    int fds[2];
    sakia_file *near;
    sakia_request request;
    sakia_result result;
    char sent[3000], got[3000];
    size_t count = 0;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    CHECK(sakia_file_adopt(fds[0], &near) == 0);
    request = request_of(SAKIA_OP_POLL_MANY, near);
    request.flags = POLLIN;
    request.token = 77;
    CHECK(sakia_loop_submit(loop, &request, 1, NULL, NULL) == 1 && request.ticket != 0);
    CHECK(sakia_loop_wait(loop, &result, 1, 0) == 0 && write(fds[1], "ab", 2) == 2);
    for (int i = 0; i < 2; i++) {
        result = next();
        CHECK(result.token == 77 && result.flags == SAKIA_MORE && (result.value & POLLIN) != 0);
        CHECK(recv(sakia_file_number(near), got, 1, 0) == 1);
    }
    CHECK(sakia_loop_wait(loop, &result, 1, 0) == 0);
    CHECK(sakia_loop_cancel(loop, request.ticket) == 0);
    result = next();
    CHECK(result.token == 77 && result.flags == 0 && result.value == -ECANCELED);

    for (size_t i = 0; i < sizeof sent; i++) {
        sent[i] = (char)(i * 7 % 251);
    }
    request = request_of(SAKIA_OP_RECEIVE_MANY, near);
    request.token = UINT64_MAX;
    CHECK(sakia_loop_submit(loop, &request, 1, NULL, NULL) == 1);
    CHECK(write(fds[1], sent, sizeof sent) == (ssize_t)sizeof sent);
    while (count < sizeof sent) {
        result = next();
        CHECK(result.token == UINT64_MAX && result.flags == SAKIA_MORE && result.value > 0);
        CHECK(result.memory != NULL && result.lent != 0 && count + (size_t)result.value <= sizeof sent);
        memcpy(got + count, result.memory, (size_t)result.value);
        count += (size_t)result.value;
        CHECK(sakia_loop_give_back(loop, result.lent) == 0);
        CHECK(sakia_loop_give_back(loop, result.lent) == -EINVAL);
    }
    CHECK(memcmp(sent, got, sizeof sent) == 0 && sakia_loop_give_back(loop, 0) == -EINVAL);
    CHECK(close(fds[1]) == 0);
    result = next();
    CHECK(result.flags == 0 && result.value == 0 && result.memory == NULL && result.lent == 0);
    sakia_file_unref(near);
}

/* A descriptor that is lent stays the program's. */
static void lent(void) {
    int fds[2];
    sakia_file *file, *again;
    sakia_request request;
    char bytes[4];
    CHECK(pipe2(fds, O_CLOEXEC) == 0 && sakia_file_lend(fds[0], &file) == 0);
    CHECK(sakia_file_lend(-1, &again) == -EBADF && again == NULL);
    CHECK(sakia_file_lend(fds[0], NULL) == -EFAULT);
    CHECK(sakia_file_number(file) == fds[0] && write(fds[1], "ab", 2) == 2);
    CHECK(with_memory(SAKIA_OP_READ, file, bytes, 1, SAKIA_CURRENT_POSITION) == 1 && bytes[0] == 'a');
    request = request_of(SAKIA_OP_CLOSE, file);
    CHECK(perform(request).value == 0);
    CHECK(with_memory(SAKIA_OP_READ, file, bytes, 1, SAKIA_CURRENT_POSITION) == -EBADF);
    CHECK(read(fds[0], bytes, 4) == 1 && bytes[0] == 'b');
    /* Lent again, and given back by the last reference only. */
    CHECK(sakia_file_lend(fds[0], &again) == 0 && write(fds[1], "c", 1) == 1);
    CHECK(with_memory(SAKIA_OP_READ, again, bytes, 4, SAKIA_CURRENT_POSITION) == 1 && bytes[0] == 'c');
    sakia_file_unref(again);
    sakia_file_unref(file);
    CHECK(fcntl(fds[0], F_GETFD) >= 0 && close(fds[0]) == 0 && close(fds[1]) == 0);
}

/* A descriptor of the library's becomes the program's, unless another may use it. */
static void released(void) {
    int fds[2], made;
    sakia_file *file, *other;
    sakia_request request;
    sakia_result result;
    char byte;
    CHECK(sakia_file_release(NULL) == -EFAULT);
    CHECK(pipe2(fds, O_CLOEXEC) == 0 && sakia_file_adopt(fds[0], &file) == 0);
    other = sakia_file_ref(file);
    CHECK(sakia_file_release(file) == -EBUSY && strstr(sakia_last_error(), "in use") != NULL);
    sakia_file_unref(other);
    CHECK(sakia_try_read(file, (uint8_t *)&byte, 1, SAKIA_CURRENT_POSITION) == -EAGAIN);
    CHECK(sakia_file_release(file) == fds[0] && fcntl(fds[0], F_GETFD) >= 0);
    /* One that a loop has used, and one that is closed. */
    CHECK(sakia_file_adopt(fds[0], &file) == 0 && write(fds[1], "x", 1) == 1);
    CHECK(with_memory(SAKIA_OP_READ, file, &byte, 1, SAKIA_CURRENT_POSITION) == 1);
    CHECK(sakia_file_release(file) == -EBUSY);
    request = request_of(SAKIA_OP_CLOSE, file);
    CHECK(perform(request).value == 0 && sakia_file_release(file) == -EBUSY);
    sakia_file_unref(file);
    CHECK(sakia_file_lend(fds[1], &file) == 0 && sakia_file_release(file) == -EBUSY);
    sakia_file_unref(file);
    /* A new one is no file of a loop before it is used. */
    request = request_of(SAKIA_OP_SOCKET, NULL);
    request.arg[0] = AF_UNIX;
    request.arg[1] = SOCK_STREAM;
    result = perform(request);
    made = sakia_file_release(result.file);
    CHECK(made >= 0 && close(made) == 0 && close(fds[1]) == 0);
}

int main(void) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    char path[] = "/tmp/sakia-c-XXXXXX";
    sakia_file *directory;
    CHECK(mkdtemp(path) != NULL);
    CHECK(sakia_loop_new(&options, &loop) == 0);
    directory = open_in(NULL, path, O_RDONLY | O_DIRECTORY);
    files(directory);
    names(directory);
    streams();
    datagrams();
    rights();
    tokens(directory);
    signals();
    attempts(directory);
    lasting();
    lent();
    released();
    sakia_file_unref(directory);
    CHECK(sakia_loop_under_way(loop) == 0 && sakia_loop_stop(loop, -1, NULL, 0) == 0);
    CHECK(sakia_loop_free(loop) == 0);
    CHECK(rmdir(path) == 0);
    puts("operations: ok");
    return 0;
}

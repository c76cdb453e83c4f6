/*
 * Random programs of file operations: each step is performed by the library in one directory, and by the kernel's own
 * calls in another. Values, errors, bytes, metadata and, at the end, the trees are the same.
 *
 *   random DIRECTORY FIRST_SEED PROGRAMS
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sakia.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "request.h"

enum { STEPS = 60, OPEN_MAX_ = 6, BYTES = 5000, PARTS = 5 };

static uint64_t seed, state;
static int step;

static void check(int is_true, const char *text, int line) {
    if (!is_true) {
        fprintf(stderr, "random.c:%d: seed %llu, step %d: %s (last error: %s)\n", line, (unsigned long long)seed, step,
                text, sakia_last_error());
        exit(1);
    }
}

#define CHECK(condition) check((condition), #condition, __LINE__)

static void same(int64_t ours, int64_t theirs, const char *text, int line) {
    if (ours != theirs) {
        fprintf(stderr, "%lld, and the kernel's own is %lld\n", (long long)ours, (long long)theirs);
    }
    check(ours == theirs, text, line);
}

#define SAME(ours, theirs) same((ours), (theirs), #ours, __LINE__)

static uint64_t below(uint64_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % bound;
}

#define ONE_OF(table) (table)[below(sizeof(table) / sizeof *(table))]

static sakia_loop *loop;
static sakia_queue *queue;
static uint64_t token;

/* The two directories, and the open files in both. */
static sakia_file *directory;
static int reference;
static struct {
    sakia_file *file;
    int fd; /* the reference's; -1 for none */
} opened[OPEN_MAX_];

/* Performs a request by a loop or a queue, and by a handle or its number. */
static sakia_result perform(sakia_request request) {
    sakia_result result;
    int64_t count;
    size_t done;
    uint64_t ticket_of_none = request.ticket = ~0ull;
    request.token = ++token;
    if (request.file != NULL && request.op != SAKIA_OP_CLOSE && below(3) == 0) {
        request.fd = sakia_file_number(request.file);
        request.file = NULL;
        request.options |= SAKIA_BY_FD;
    }
    if (request.file2 != NULL && below(3) == 0) {
        request.fd2 = sakia_file_number(request.file2);
        request.file2 = NULL;
        request.options |= SAKIA_BY_FD2;
    }
    /* A close waits for the loop that has used the file, and so for this thread. */
    if (request.op == SAKIA_OP_CLOSE || below(2) == 0) {
        CHECK(sakia_loop_submit(loop, &request, 1, &result, &done) == 1);
        for (count = (int64_t)done; count == 0;) {
            count = sakia_loop_wait(loop, &result, 1, -1);
        }
    } else {
        CHECK(sakia_queue_submit(queue, &request, 1, &result, &done) == 1);
        for (count = (int64_t)done; count == 0;) {
            count = sakia_queue_wait(queue, &result, 1, -1);
        }
    }
    CHECK(count == 1 && result.token == token && result.flags == 0 && request.ticket != ticket_of_none);
    CHECK(result.memory == NULL && result.lent == 0);
    return result;
}

static int64_t kernel(long value) { return value < 0 ? -errno : value; }

static int pick(void) {
    int found = -1;
    for (int tries = 0; tries < 8 && found < 0; tries++) {
        int at = (int)below(OPEN_MAX_);
        found = opened[at].file ? at : -1;
    }
    return found;
}

static const char *path(void) {
    static const char *const names[] = {"a", "b", "c", "d", "d/a", "d/b", "e", "l", "", ".", "d/../b", "a/x", "../x"};
    return ONE_OF(names);
}

static uint64_t offset(void) { return below(6) == 0 ? SAKIA_CURRENT_POSITION : below(2 * BYTES); }

static void same_facts(const struct statx *a, const struct statx *b) {
    CHECK(a->stx_mode == b->stx_mode && a->stx_size == b->stx_size && a->stx_nlink == b->stx_nlink);
    CHECK(a->stx_uid == b->stx_uid && a->stx_gid == b->stx_gid);
    CHECK((a->stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS);
    CHECK(S_ISDIR(a->stx_mode) || a->stx_blocks == b->stx_blocks);
}

static void open_one(void) {
    static const uint32_t accesses[] = {O_RDONLY, O_WRONLY, O_RDWR, O_RDWR};
    static const uint32_t others[] = {0,        O_CREAT,     O_CREAT, O_CREAT | O_EXCL, O_TRUNC | O_CREAT,
                                      O_APPEND, O_DIRECTORY, O_PATH,  O_NOFOLLOW};
    static const uint64_t resolves[] = {0, 0, RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS};
    int at = (int)below(OPEN_MAX_);
    struct open_how how;
    sakia_request request = request_of(SAKIA_OP_OPEN, directory);
    sakia_result result;
    const char *name = path();
    int64_t fd;
    if (opened[at].file) {
        if (below(2) == 0) {
            CHECK(perform(request_of(SAKIA_OP_CLOSE, opened[at].file)).value == 0);
        }
        sakia_file_unref(opened[at].file);
        CHECK(close(opened[at].fd) == 0);
        opened[at].file = NULL;
        return;
    }
    memset(&how, 0, sizeof how);
    request.flags = ONE_OF(others);
    request.flags |= request.flags == O_DIRECTORY || request.flags == O_PATH ? 0 : ONE_OF(accesses);
    request.arg[0] = (request.flags & O_CREAT) != 0 ? 0640 : 0;
    request.offset2 = strstr(name, "..") ? RESOLVE_BENEATH : ONE_OF(resolves);
    request.path = name;
    how.flags = request.flags | O_CLOEXEC;
    how.mode = request.arg[0];
    how.resolve = request.offset2;
    result = perform(request);
    fd = kernel(syscall(SYS_openat2, reference, name, &how, sizeof how));
    CHECK(fd < 0 ? result.value == fd && result.file == NULL : result.value == 0 && result.file != NULL);
    if (fd >= 0) {
        CHECK((fcntl(sakia_file_number(result.file), F_GETFD) & FD_CLOEXEC) != 0);
        opened[at].file = result.file;
        opened[at].fd = (int)fd;
    }
}

/* One or several buffers, with the same bytes in both worlds. */
static void transfer(int at) {
    static uint8_t ours[PARTS][BYTES], theirs[PARTS][BYTES];
    static const uint32_t write_flags[] = {0, 0, 0x10 /* RWF_APPEND */, 0x2 /* RWF_DSYNC */};
    struct iovec parts[PARTS], others[PARTS];
    uint64_t place = offset(), room = 0;
    int writes = below(2) == 0, count = (int)below(PARTS + 1), is_vector = below(3) == 0;
    sakia_request request = request_of(SAKIA_OP_NOP, opened[at].file);
    sakia_result result;
    int64_t expected;
    uint32_t flags = is_vector && writes ? ONE_OF(write_flags) : 0;
    count = is_vector ? count : 1;
    for (int i = 0; i < count; i++) {
        size_t len = below(8) == 0 ? 0 : below(BYTES);
        uint8_t byte = (uint8_t)below(256);
        parts[i].iov_base = ours[i];
        others[i].iov_base = theirs[i];
        parts[i].iov_len = others[i].iov_len = len;
        room += len;
        memset(ours[i], byte, BYTES);
        memset(theirs[i], byte, BYTES);
    }
    request.offset = place;
    if (is_vector) {
        request.op = writes ? SAKIA_OP_WRITEV : SAKIA_OP_READV;
        request.buf = parts;
        request.len = (size_t)count;
        request.flags = flags;
    } else {
        request.op = writes ? SAKIA_OP_WRITE : SAKIA_OP_READ;
        request.buf = parts[0].iov_base;
        request.len = parts[0].iov_len;
    }
    result = perform(request);
    expected = kernel(syscall(writes ? SYS_pwritev2 : SYS_preadv2, opened[at].fd, others, (long)count, place, 0L,
                              (long)flags));
    if (!writes && 0 < result.value && result.value < expected) {
        /* The rest was not cached. The bytes up to there are the same, and so is the position from now on. */
        int64_t left = result.value;
        for (int i = 0; i < count; i++) {
            size_t len = (size_t)left < parts[i].iov_len ? (size_t)left : parts[i].iov_len;
            CHECK(memcmp(ours[i], theirs[i], len) == 0);
            left -= (int64_t)len;
        }
        CHECK(lseek(sakia_file_number(opened[at].file), lseek(opened[at].fd, 0, SEEK_CUR), SEEK_SET) >= 0);
        return;
    }
    SAME(result.value, room == 0 && !writes ? -EINVAL : expected);
    for (int i = 0; i < count; i++) {
        CHECK(memcmp(ours[i], theirs[i], BYTES) == 0);
    }
}

static void on_file(int at) {
    static const uint32_t modes[] = {0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE};
    static const uint32_t masks[] = {0600, 0644, 0400, 0777};
    struct statx facts, others;
    struct statfs system, other_system;
    struct pollfd ready = {opened[at].fd, POLLIN | POLLOUT, 0};
    struct timespec times[2] = {{(time_t)below(1000), 0}, {0, below(2) ? UTIME_OMIT : UTIME_NOW}};
    sakia_file *file = opened[at].file;
    int fd = opened[at].fd;
    sakia_request request = request_of(SAKIA_OP_NOP, file);
    switch (below(10)) {
    case 0:
        request.op = SAKIA_OP_SYNC;
        request.flags = (uint32_t)below(2);
        SAME(perform(request).value, kernel(request.flags ? fdatasync(fd) : fsync(fd)));
        break;
    case 1:
        request.op = SAKIA_OP_STAT;
        request.buf = &facts;
        request.len = sizeof facts;
        CHECK(perform(request).value == 0 && statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &others) == 0);
        same_facts(&facts, &others);
        break;
    case 2:
        request.op = SAKIA_OP_STATFS;
        request.buf = &system;
        request.len = sizeof system;
        CHECK(perform(request).value == 0 && fstatfs(fd, &other_system) == 0);
        CHECK(system.f_type == other_system.f_type && system.f_bsize == other_system.f_bsize);
        break;
    case 3:
        request.op = SAKIA_OP_TRUNCATE;
        request.offset = below(3 * BYTES);
        SAME(perform(request).value, kernel(ftruncate(fd, (off_t)request.offset)));
        break;
    case 4:
        request.op = SAKIA_OP_ALLOCATE;
        request.flags = ONE_OF(modes);
        request.offset = below(BYTES);
        request.offset2 = below(BYTES);
        SAME(perform(request).value, kernel(fallocate(fd, (int)request.flags, (off_t)request.offset, (off_t)request.offset2)));
        break;
    case 5:
        request.op = SAKIA_OP_ADVISE;
        request.flags = (uint32_t)below(7);
        SAME(perform(request).value, -posix_fadvise(fd, 0, 0, (int)request.flags));
        break;
    case 6:
        request.op = SAKIA_OP_CHMOD;
        request.arg[0] = ONE_OF(masks);
        SAME(perform(request).value, kernel(fchmod(fd, request.arg[0])));
        break;
    case 7:
        request.op = SAKIA_OP_CHOWN;
        request.arg[0] = request.arg[1] = UINT32_MAX;
        SAME(perform(request).value, kernel(fchown(fd, (uid_t)-1, (gid_t)-1)));
        break;
    case 8:
        request.op = SAKIA_OP_SET_TIMES;
        request.buf = times;
        request.len = sizeof times;
        SAME(perform(request).value, kernel(futimens(fd, times)));
        break;
    default:
        request.op = SAKIA_OP_POLL;
        request.flags = POLLIN | POLLOUT;
        CHECK(poll(&ready, 1, 0) == 1);
        if ((ready.revents & POLLNVAL) == 0) { /* of a path alone */
            SAME(perform(request).value, ready.revents);
        }
    }
}

static void on_names(void) {
    static const uint32_t look[] = {0, AT_SYMLINK_NOFOLLOW}, remove_[] = {0, 0, AT_REMOVEDIR};
    static const uint32_t rename_[] = {0, 0, 1 /* RENAME_NOREPLACE */, 2 /* RENAME_EXCHANGE */};
    struct statx facts, others;
    struct timespec times[2] = {{7, 8}, {0, UTIME_OMIT}};
    char link[64], other_link[64];
    sakia_request request = request_of(SAKIA_OP_NOP, directory);
    sakia_result result;
    int64_t expected;
    const char *name = path(), *second = path();
    if (strstr(name, "..") || strstr(second, "..")) { /* it may lead out of the directories */
        name = second = "b";
    }
    if (second[0] == 0) { /* a ring refuses it before it looks at the first path */
        second = "e";
    }
    request.path = name;
    switch (below(10)) {
    case 0:
        request.op = SAKIA_OP_STAT;
        request.flags = ONE_OF(look);
        request.buf = &facts;
        request.len = sizeof facts;
        expected = kernel(statx(reference, name, (int)request.flags, STATX_BASIC_STATS, &others));
        SAME(perform(request).value, expected);
        if (expected == 0) {
            same_facts(&facts, &others);
        }
        break;
    case 1:
        request.op = SAKIA_OP_MKDIR;
        request.arg[0] = 0750;
        SAME(perform(request).value, kernel(mkdirat(reference, name, 0750)));
        break;
    case 2:
        request.op = SAKIA_OP_UNLINK;
        request.flags = ONE_OF(remove_);
        SAME(perform(request).value, kernel(unlinkat(reference, name, (int)request.flags)));
        break;
    case 3:
        request.op = SAKIA_OP_RENAME;
        request.file2 = directory;
        request.path2 = second;
        request.flags = ONE_OF(rename_);
        SAME(perform(request).value, kernel(renameat2(reference, name, reference, second, request.flags)));
        break;
    case 4:
        request.op = SAKIA_OP_LINK;
        request.file2 = directory;
        request.path2 = second;
        SAME(perform(request).value, kernel(linkat(reference, name, reference, second, 0)));
        break;
    case 5:
        request.op = SAKIA_OP_SYMLINK;
        request.path2 = second;
        SAME(perform(request).value, kernel(symlinkat(second, reference, name)));
        break;
    case 6:
        request.op = SAKIA_OP_READLINK;
        request.buf = link;
        request.len = below(3) == 0 ? 1 : sizeof link;
        expected = kernel(readlinkat(reference, name, other_link, request.len));
        SAME(perform(request).value, expected);
        CHECK(expected < 0 || memcmp(link, other_link, (size_t)expected) == 0);
        break;
    case 7:
        request.op = SAKIA_OP_CHMOD;
        request.arg[0] = 0600 | (uint32_t)below(0100);
        SAME(perform(request).value, kernel(fchmodat(reference, name, request.arg[0], 0)));
        break;
    case 8:
        request.op = SAKIA_OP_SET_TIMES;
        request.buf = times;
        request.len = sizeof times;
        request.flags = ONE_OF(look);
        SAME(perform(request).value, kernel(utimensat(reference, name, times, (int)request.flags)));
        break;
    default:
        request.op = SAKIA_OP_CHOWN;
        request.arg[0] = getuid();
        request.arg[1] = UINT32_MAX;
        request.flags = ONE_OF(look);
        result = perform(request);
        SAME(result.value, kernel(fchownat(reference, name, getuid(), (gid_t)-1, (int)request.flags)));
    }
}

static void copy(int from, int to) {
    sakia_request request = request_of(SAKIA_OP_COPY_RANGE, opened[from].file);
    off64_t from_at, to_at;
    request.file2 = opened[to].file;
    request.offset = below(BYTES);
    request.offset2 = below(BYTES);
    request.len = below(BYTES);
    from_at = (off64_t)request.offset;
    to_at = (off64_t)request.offset2;
    SAME(perform(request).value, kernel(copy_file_range(opened[from].fd, &from_at, opened[to].fd, &to_at, request.len, 0)));
}

/* The names in a directory of the library's and in the reference's, in any order. */
static void list(void) {
    uint64_t ours = 0, theirs = 0;
    uint64_t memory[256]; /* aligned for entries */
    char *bytes = (char *)memory;
    sakia_request request = request_of(SAKIA_OP_OPEN, directory);
    sakia_file *file;
    int fd = openat(reference, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    request.path = ".";
    request.flags = O_RDONLY | O_DIRECTORY;
    file = perform(request).file;
    CHECK(file != NULL && fd >= 0);
    for (int world = 0; world < 2; world++) {
        uint64_t *sum = world == 0 ? &ours : &theirs;
        for (;;) {
            int64_t count;
            if (world == 0) {
                request = request_of(SAKIA_OP_READ_DIRECTORY, file);
                request.buf = bytes;
                request.len = sizeof memory;
                count = perform(request).value;
            } else {
                count = kernel(syscall(SYS_getdents64, fd, bytes, sizeof memory));
            }
            CHECK(count >= 0);
            if (count == 0) {
                break;
            }
            for (int64_t at = 0; at < count;) {
                struct dirent64 *entry = (struct dirent64 *)(void *)(bytes + at);
                uint64_t hash = entry->d_type + 1;
                for (const char *name = entry->d_name; *name; name++) {
                    hash = hash * 1099511628211u + (uint8_t)*name;
                }
                *sum += hash;
                at += entry->d_reclen;
            }
        }
    }
    CHECK(ours == theirs);
    sakia_file_unref(file);
    CHECK(close(fd) == 0);
}

static void program(const char *place) {
    char ours[512], theirs[512], command[2100];
    sakia_request request = request_of(SAKIA_OP_OPEN, NULL);
    state = seed * 0x9e3779b97f4a7c15u + 1;
    CHECK(snprintf(ours, sizeof ours, "%s/ours", place) > 0 && snprintf(theirs, sizeof theirs, "%s/theirs", place) > 0);
    CHECK(mkdir(ours, 0700) == 0 && mkdir(theirs, 0700) == 0);
    reference = open(theirs, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    request.path = ours;
    request.flags = O_RDONLY | O_DIRECTORY;
    directory = perform(request).file;
    CHECK(reference >= 0 && directory != NULL);
    for (step = 0; step < STEPS; step++) {
        int at = pick();
        switch (at < 0 ? below(2) : below(6)) {
        case 0:
            open_one();
            break;
        case 1:
            on_names();
            break;
        case 2:
        case 3:
            transfer(at);
            break;
        case 4:
            on_file(at);
            break;
        default:
            if (below(4) == 0) {
                list();
            } else {
                copy(at, pick());
            }
        }
    }
    for (int at = 0; at < OPEN_MAX_; at++) {
        if (opened[at].file) {
            sakia_file_unref(opened[at].file);
            CHECK(close(opened[at].fd) == 0);
            opened[at].file = NULL;
        }
    }
    sakia_file_unref(directory);
    CHECK(close(reference) == 0);
    CHECK(snprintf(command, sizeof command, "diff -r --no-dereference '%s' '%s' && rm -r '%s' '%s'", ours, theirs, ours,
                   theirs) > 0);
    CHECK(system(command) == 0);
}

int main(int argc, char **argv) {
    sakia_loop_options loop_options = SAKIA_LOOP_OPTIONS;
    sakia_queue_options queue_options = SAKIA_QUEUE_OPTIONS;
    CHECK(argc == 4);
    umask(022);
    CHECK(sakia_loop_new(&loop_options, &loop) == 0 && sakia_queue_new(&queue_options, &queue) == 0);
    for (uint64_t count = strtoull(argv[3], NULL, 10), first = strtoull(argv[2], NULL, 10); count > 0; count--) {
        seed = first + count;
        program(argv[1]);
    }
    CHECK(sakia_loop_under_way(loop) == 0 && sakia_loop_free(loop) == 0 && sakia_queue_free(queue) == 0);
    puts("random: ok");
    return 0;
}

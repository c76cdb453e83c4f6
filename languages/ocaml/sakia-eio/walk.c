/* Paths below a directory, where `openat2(2)` is refused. */
#define _GNU_SOURCE
#define CAML_NAME_SPACE
#include <caml/fail.h>
#include <caml/memory.h>
#include <caml/mlvalues.h>
#include <caml/signals.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef RESOLVE_BENEATH
#define RESOLVE_BENEATH 8
#endif

struct how {
    uint64_t flags, mode, resolve;
};

/* Tells whether this process may call `openat2(2)`; the ring would not ask its filter. */
CAMLprim value eio_sakia_has_openat2(value unit) {
    struct how how = {O_PATH | O_CLOEXEC, 0, RESOLVE_BENEATH};
    long fd = syscall(SYS_openat2, AT_FDCWD, ".", &how, sizeof how);

    (void) unit;
    if (fd < 0)
        return Val_bool(errno != ENOSYS && errno != EPERM);
    close((int) fd);
    return Val_true;
}

#define LINKS 40
#define DEPTH 1024

struct walk {
    /* The directories on the way, opened by the walk; below them is the one that it may not leave. */
    int below[DEPTH];
    int depth, links, base;
};

static int here(const struct walk *walk) {
    return walk->depth == 0 ? walk->base : walk->below[walk->depth - 1];
}

static void up(struct walk *walk) {
    close(walk->below[--walk->depth]);
}

/* Puts the target of the link `name`, which lies in the current directory, ahead of the rest of the path. */
static int follow(struct walk *walk, const char *name, char *rest) {
    char target[PATH_MAX];
    ssize_t len = readlinkat(here(walk), name, target, sizeof target - 1);
    size_t left = strlen(rest);

    if (len < 0)
        return -errno;
    if (++walk->links > LINKS)
        return -ELOOP;
    if (len > 0 && target[0] == '/')
        return -EXDEV;
    if ((size_t) len + 1 + left >= PATH_MAX)
        return -ENAMETOOLONG;
    memmove(rest + len + (left > 0), rest, left + 1);
    if (left > 0)
        rest[len] = '/';
    memcpy(rest, target, (size_t) len);
    return 0;
}

/* Opens a path without `openat2(2)`, one component after the other. No component is left to the kernel's
 * "..": a directory may be moved while the walk is in it. */
static int walk_to(struct walk *walk, char *rest, int flags, mode_t mode) {
    char name[NAME_MAX + 2];

    if (rest[0] == 0)
        return -ENOENT;
    for (;;) {
        if (rest[0] == '/')
            return -EXDEV;
        char *slash = strchrnul(rest, '/');
        size_t len = (size_t) (slash - rest);
        bool has_slash = *slash == '/';
        if (len > NAME_MAX)
            return -ENAMETOOLONG;
        memcpy(name, rest, len);
        name[len] = 0;
        while (*slash == '/')
            slash++;
        bool is_last = *slash == 0;
        memmove(rest, slash, strlen(slash) + 1);
        bool is_dot = strcmp(name, ".") == 0, is_up = strcmp(name, "..") == 0;
        if (is_up) {
            if (walk->depth == 0)
                return -EXDEV;
            up(walk);
        }
        if (!is_last && (is_dot || is_up))
            continue;
        if (is_last) {
            const char *leaf = is_up || is_dot ? "." : name;
            int how = flags | O_CLOEXEC | (has_slash || is_up || is_dot ? O_DIRECTORY : 0);
            bool may_follow = !(flags & O_NOFOLLOW) || has_slash;
            /* With O_PATH a link itself would be opened, and found to be none to follow. */
            struct stat stat;
            if (may_follow && !(is_up || is_dot) &&
                fstatat(here(walk), leaf, &stat, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(stat.st_mode)) {
                if ((flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL))
                    return -EEXIST;
                int error = follow(walk, leaf, rest);
                if (error < 0)
                    return error;
                if (has_slash && strlen(rest) + 1 < PATH_MAX)
                    strcat(rest, "/");
                continue;
            }
            /* A FIFO would wait for another program, and with it the thread. */
            int fd = openat(here(walk), leaf, how | O_NOFOLLOW | O_NONBLOCK, mode);
            if (fd >= 0) {
                if (!(flags & (O_NONBLOCK | O_PATH)))
                    fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
                return fd;
            }
            /* It may have become a link since. */
            if (errno == ELOOP && may_follow && ++walk->links <= LINKS) {
                strcpy(rest, name);
                if (has_slash)
                    strcat(rest, "/");
                continue;
            }
            return -errno;
        }
        int fd = openat(here(walk), name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0) {
            if (walk->depth == DEPTH) {
                close(fd);
                return -ENAMETOOLONG;
            }
            walk->below[walk->depth++] = fd;
            continue;
        }
        if (errno != ENOTDIR && errno != ELOOP)
            return -errno;
        int error = errno, failed = follow(walk, name, rest);
        if (failed < 0)
            return failed == -EINVAL ? -error : failed;
    }
}

/* As `openat2(2)` with RESOLVE_BENEATH; the number or a negative error number. For a thread that may wait. */
CAMLprim value eio_sakia_open_beneath(value fd, value path, value flags, value mode) {
    CAMLparam1(path);
    int base = Int_val(fd) < 0 ? AT_FDCWD : Int_val(fd), how = Int_val(flags);
    mode_t bits = (mode_t) Long_val(mode);
    struct walk *walk = malloc(sizeof *walk);
    char *rest = malloc(2 * PATH_MAX);

    if (walk == NULL || rest == NULL)
        caml_raise_out_of_memory();
    if (caml_string_length(path) >= PATH_MAX) {
        free(walk);
        free(rest);
        CAMLreturn(Val_int(-ENAMETOOLONG));
    }
    strcpy(rest, String_val(path));
    walk->depth = walk->links = 0;
    walk->base = base;
    caml_enter_blocking_section();
    int result = walk_to(walk, rest, how, bits);
    while (walk->depth > 0)
        up(walk);
    free(walk);
    free(rest);
    caml_leave_blocking_section();
    CAMLreturn(Val_int(result));
}

/* Runs a program without a system call: `without NAME[=ERROR] ... -- PROGRAM ARGUMENT ...`, where NAME is
 * io_uring, openat2 or pidfd, and ERROR the error number of the refusal, 38 (ENOSYS) if none is given. */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void refuse(int number, int error) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned) number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned) error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        err(1, "no filter of system calls");
}

int main(int count, char **arguments) {
    int i = 1;

    for (; i < count && strcmp(arguments[i], "--") != 0; i++) {
        char *equals = strchr(arguments[i], '=');
        int error = equals == NULL ? ENOSYS : atoi(equals + 1);
        if (equals != NULL)
            *equals = 0;
        if (strcmp(arguments[i], "io_uring") == 0)
            refuse(SYS_io_uring_setup, error);
        else if (strcmp(arguments[i], "openat2") == 0)
            refuse(SYS_openat2, error);
        else if (strcmp(arguments[i], "pidfd") == 0)
            refuse(SYS_pidfd_open, error);
        else
            errx(2, "no name: %s", arguments[i]);
    }
    if (i + 1 >= count)
        errx(2, "usage: without NAME[=ERROR] ... -- PROGRAM ARGUMENT ...");
    execvp(arguments[i + 1], arguments + i + 1);
    err(1, "%s", arguments[i + 1]);
}

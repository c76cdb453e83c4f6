/* Trees: copies and removals, their counts, failures and ends, and hostile calls. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sakia.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(int is_true, const char *text, int line) {
    if (!is_true) {
        fprintf(stderr, "tree.c:%d: %s (last error: %s)\n", line, text, sakia_last_error());
        exit(1);
    }
}

#define CHECK(condition) check((condition), #condition, __LINE__)

static void write_file(const char *directory, int number, const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s/file-%d", directory, number);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0640);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

static sakia_counts counts_of(sakia_tree *tree) {
    struct {
        sakia_counts counts;
        uint64_t of_a_newer_header;
    } newer = {{0, 0, 0, 0, 0, 0, 0, 0}, 7};
    CHECK(sakia_tree_counts(tree, &newer.counts, sizeof newer) == 0 && newer.of_a_newer_header == 0);
    return newer.counts;
}

int main(int argc, char **argv) {
    char from[2048], inner[2048], to[2048], path[4096];
    sakia_tree *tree;
    sakia_tree_options options = SAKIA_TREE_OPTIONS;
    sakia_failure failure;
    sakia_counts counts;
    struct stat facts;
    int status;
    CHECK(argc == 2 && mkdir(argv[1], 0755) == 0);
    snprintf(from, sizeof from, "%s/from", argv[1]);
    snprintf(to, sizeof to, "%s/to", argv[1]);
    snprintf(inner, sizeof inner, "%s/from/inner", argv[1]);
    CHECK(mkdir(from, 0755) == 0 && mkdir(inner, 0750) == 0);
    for (int i = 0; i < 100; i++) {
        write_file(i % 2 == 0 ? from : inner, i, "contents");
    }
    snprintf(path, sizeof path, "%s/link", from);
    CHECK(symlink("file-0", path) == 0);

    options.flags = SAKIA_TREE_ARCHIVE;
    options.threads = 2;
    CHECK(sakia_copy_tree(from, to, &options, &tree) == 0 && tree != NULL);
    struct pollfd event = {sakia_tree_pollable(tree), POLLIN, 0};
    CHECK(event.fd >= 0 && poll(&event, 1, -1) == 1 && close(event.fd) == 0);
    CHECK(sakia_tree_wait(tree, 0) == 1 && sakia_tree_wait(tree, -1) == 1);
    counts = counts_of(tree);
    CHECK(counts.files == 100 && counts.directories == 2 && counts.symlinks == 1);
    CHECK(counts.bytes == 800 && counts.failures == 0 && sakia_tree_failure(tree, &failure) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(sakia_tree_wait(tree, -1) == -EPERM && sakia_tree_cancel(tree) == -EPERM);
        CHECK(sakia_tree_free(tree) == -EPERM && strstr(sakia_last_error(), "parent") != NULL);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(sakia_tree_free(tree) == 0);
    snprintf(path, sizeof path, "%s/inner/file-99", to);
    CHECK(stat(path, &facts) == 0 && facts.st_size == 8 && (facts.st_mode & 07777) == 0640);
    snprintf(path, sizeof path, "%s/link", to);
    CHECK(lstat(path, &facts) == 0 && S_ISLNK(facts.st_mode));

    /* Entries that fail: a directory is where a file is to be, and the rest goes on. */
    snprintf(path, sizeof path, "%s/file-0", to);
    CHECK(unlink(path) == 0 && mkdir(path, 0755) == 0);
    options.flags = 0;
    CHECK(sakia_copy_tree(from, to, &options, &tree) == 0 && sakia_tree_wait(tree, -1) == -EREMOTEIO);
    CHECK(sakia_tree_failure(tree, &failure) == 1 && failure.error > 0 && failure.reserved == 0);
    CHECK(strcmp(failure.path, path) == 0 || strstr(failure.path, "file-0") != NULL);
    CHECK(strlen(failure.operation) > 0);
    CHECK(counts_of(tree).failures == 1 && sakia_tree_failure(tree, &failure) == 0);
    CHECK(sakia_tree_free(tree) == 0);

    /* No source: a failure, too. */
    CHECK(sakia_copy_tree("/nowhere/at/all", to, NULL, &tree) == 0);
    CHECK(sakia_tree_wait(tree, -1) == -EREMOTEIO && sakia_tree_failure(tree, &failure) == 1);
    CHECK(failure.error == ENOENT && sakia_tree_free(tree) == 0);

    /* Canceled at once, or too late. */
    for (int i = 0; i < 20; i++) {
        CHECK(sakia_copy_tree(from, to, NULL, &tree) == 0 && sakia_tree_cancel(tree) == 0);
        status = sakia_tree_wait(tree, -1);
        CHECK(status == -ECANCELED || status == -EREMOTEIO);
        CHECK(sakia_tree_free(tree) == 0);
        CHECK(sakia_copy_tree(from, to, NULL, &tree) == 0 && sakia_tree_free(tree) == 0);
    }

    CHECK(sakia_copy_tree(NULL, to, NULL, &tree) == -EFAULT && tree == NULL);
    CHECK(sakia_copy_tree(from, NULL, NULL, &tree) == -EFAULT);
    CHECK(sakia_copy_tree(from, to, NULL, NULL) == -EFAULT);
    options.flags = SAKIA_TREE_KEEP | SAKIA_TREE_UPDATE;
    CHECK(sakia_copy_tree(from, to, &options, &tree) == -EINVAL);
    options.flags = 1u << 31;
    CHECK(sakia_copy_tree(from, to, &options, &tree) == -EINVAL);
    options.flags = 0;
    options.size = 8;
    CHECK(sakia_copy_tree(from, to, &options, &tree) == -EINVAL);
    options.size = sizeof options;
    options.threads = 1u << 20;
    CHECK(sakia_copy_tree(from, to, &options, &tree) == -EINVAL);
    options.threads = 0;
    options.flags = SAKIA_TREE_FORCE;
    CHECK(sakia_remove_tree(to, &options, &tree) == -EINVAL);
    CHECK(sakia_tree_wait(NULL, 0) == -EFAULT && sakia_tree_cancel(NULL) == -EFAULT);
    CHECK(sakia_tree_failure(NULL, &failure) == -EFAULT && sakia_tree_free(NULL) == 0);

    CHECK(sakia_remove_tree(argv[1], NULL, &tree) == 0 && sakia_tree_wait(tree, -1) == 1);
    CHECK(sakia_tree_counts(tree, NULL, 64) == -EFAULT && sakia_tree_counts(tree, &counts, 8) == -EINVAL);
    CHECK(sakia_tree_failure(tree, NULL) == -EFAULT && counts_of(tree).directories >= 4);
    CHECK(sakia_tree_free(tree) == 0 && stat(argv[1], &facts) == -1 && errno == ENOENT);
    puts("tree: ok");
    return 0;
}

/* Copies a tree as `cp -a` does, with a line of its progress: `tree_copy FROM TO`. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <inttypes.h>
#include <sakia.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    sakia_tree_options options = SAKIA_TREE_OPTIONS;
    sakia_tree *tree;
    sakia_counts counts;
    sakia_failure failure;
    int ended;
    if (argc != 3) {
        fprintf(stderr, "tree_copy FROM TO\n");
        return 2;
    }
    options.flags = SAKIA_TREE_ARCHIVE;
    if (sakia_copy_tree(argv[1], argv[2], &options, &tree) < 0) {
        fprintf(stderr, "tree_copy: %s\n", sakia_last_error());
        return 1;
    }
    do {
        ended = sakia_tree_wait(tree, 200000000); /* ns */
        while (sakia_tree_failure(tree, &failure) == 1) {
            fprintf(stderr, "%s: %s: %s\n", failure.path, failure.operation, strerror(failure.error));
        }
        if (sakia_tree_counts(tree, &counts, sizeof counts) == 0) {
            fprintf(stderr, "\r%" PRIu64 " files, %" PRIu64 " bytes", counts.files, counts.bytes);
        }
    } while (ended == 0);
    fputc('\n', stderr);
    if (ended < 0) {
        fprintf(stderr, "tree_copy: %s\n", sakia_last_error());
    }
    sakia_tree_free(tree);
    return ended != 1;
}

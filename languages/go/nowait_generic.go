//go:build arm64 || riscv64 || loong64

package sakia

const sysPreadv2 = 286

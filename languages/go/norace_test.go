//go:build !race

package sakia

const goroutinesMax = 1 << 30

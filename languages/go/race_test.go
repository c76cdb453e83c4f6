//go:build race

package sakia

// The race detector allows 8128 goroutines at a time.
const goroutinesMax = 7000

//go:build !race

package sakia

func raceReleased()    {}
func raceRead([]byte)  {}
func raceWrote([]byte) {}

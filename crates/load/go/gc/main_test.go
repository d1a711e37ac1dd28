package main

import "testing"

// The Rust programs compute the same times: crates/load/src/rests.rs.
func TestRestsAreThoseOfTheOtherPrograms(t *testing.T) {
	if start := restStart(7, 3); start != 934_603_978 {
		t.Errorf("the rest of period 3 by seed 7 begins at %d", start)
	}
}

package drive

import (
	"strings"
	"testing"
)

func TestOwnImagesAndLabs(t *testing.T) {
	own := Own{Images: map[string]string{"openmpi": "openmpi-kernel"}, Lab: []string{"--accelerator", "kvm"}}
	for _, c := range []struct {
		own         Own
		typed, said string
	}{
		{Own{}, "run -n 1 --image openmpi -- ./witness", "run -n 1 --image openmpi -- ./witness"},
		{Own{}, "lab up --hosts 3", "lab up --hosts 3"},
		{own, "run -n 1 --image openmpi -- ./witness --image openmpi", "run -n 1 --image openmpi-kernel -- ./witness --image openmpi"},
		{own, "run --image plain -- sleep 1", "run --image plain -- sleep 1"},
		{own, "run -- grep --image openmpi", "run -- grep --image openmpi"},
		{own, "run --image", "run --image"},
		{own, "image build openmpi", "image build openmpi"},
		{own, "lab up --hosts 3", "lab up --hosts 3 --accelerator kvm"},
		{own, "lab down", "lab down"},
	} {
		typed := strings.Fields(c.typed)
		if got := strings.Join(c.own.words(typed), " "); got != c.said || strings.Join(typed, " ") != c.typed {
			t.Errorf("%s becomes %s, not %s", typed, got, c.said)
		}
	}
}

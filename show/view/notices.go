package view

import "fmt"

// noticeNotes says which hosts go away soon.
func (c Cluster) noticeNotes(t *Table) {
	for _, h := range c.Hosts {
		if h.EmptyBy.IsZero() {
			continue
		}
		says := "it goes away soon"
		if n, stands := h.Facts.Notices.Urgent(h.Waived); stands {
			says = n.Sentence(c.At)
		}
		t.Notes = append(t.Notes, fmt.Sprintf("%s is emptied: %s; see `pagurus explain %s`", h.ID, cell(says), h.ID))
	}
}

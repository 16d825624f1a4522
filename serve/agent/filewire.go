// This file is the protocol by which a host has another one, which serves a job's files, clone them: HTTP beside that of the
// vaults. A host may ask about a job whose network it is in. It must not know what is asked.
//
//	POST /v1/files/JOB/WHAT

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"pagurus/fleet"
)

// mostFiles bounds a question about a job's open files, and its answer.
const mostFiles = 4 << 20

// mostAsked bounds how many other hosts' questions are answered at once.
const mostAsked = 16

// AskFiles asks the host that serves a job's files. The first call may take long; later ones take as long as an answer.
type AskFiles func(ctx context.Context, what string, body []byte) ([]byte, error)

// askFiles reaches the host that serves the files of a task's job; nil: there is none, or it is not reached.
func (a *Agent) askFiles(w *taskRun) (_ AskFiles, end func()) {
	at := w.task.FileHost
	if at == nil || at.Address == "" || at.Host == a.Host || a.Vaults.Credentials == nil {
		return nil, func() {}
	}
	c := a.newVaultClient(at.Host, at.Address)
	return func(ctx context.Context, what string, body []byte) ([]byte, error) {
		return c.post(ctx, "files/"+url.PathEscape(string(w.task.Job.ID))+"/"+url.PathEscape(what), body, mostFiles)
	}, c.close
}

// addFileRoutes has this host answer those of jobs whose files it serves.
func (a *Agent) addFileRoutes(mux *http.ServeMux) {
	turns := make(chan struct{}, mostAsked)
	mux.HandleFunc("POST /v1/files/{job}/{what}", func(out http.ResponseWriter, r *http.Request) {
		host, err := a.Vaults.Credentials.Peer(*r.TLS)
		if err != nil {
			http.Error(out, err.Error(), http.StatusUnauthorized)
			return
		}
		job := fleet.JobID(r.PathValue("job"))
		s, is := a.servesTo(host, job)
		if !is || a.Vaults.Files == nil {
			http.Error(out, fmt.Sprintf("host %s serves no files of job %s to %s", a.Host, job, host), http.StatusForbidden)
			return
		}
		q := a.vaultAsked(host, out, r)
		body, err := q.body(mostFiles, mostFiles)
		if err == nil {
			defer q.give()
			var answer []byte
			if answer, err = a.answerFiles(turns, FileQuestion{Job: job, Share: s, What: r.PathValue("what"), Body: body}, r); err == nil {
				q.answer(answer)
				return
			}
		}
		http.Error(out, err.Error(), vaultStatus(err))
	})
}

// answerFiles answers a question when its turn comes.
func (a *Agent) answerFiles(turns chan struct{}, q FileQuestion, r *http.Request) ([]byte, error) {
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
		return a.Vaults.Files.Answer(r.Context(), q)
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// FileQuestion is what another host asks.
type FileQuestion struct {
	Job   fleet.JobID
	Share fleet.Share
	What  string
	Body  []byte
}

// servesTo is what this host serves to another one of a job's.
func (a *Agent) servesTo(host fleet.HostID, job fleet.JobID) (fleet.Share, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wanted == nil {
		return fleet.Share{}, false
	}
	for _, n := range a.wanted.Networks {
		if n.Job == job && n.Share != nil && slices.ContainsFunc(n.Endpoints, func(e fleet.Endpoint) bool { return e.Host == host }) {
			return *n.Share, true
		}
	}
	return fleet.Share{}, false
}

// endFiles ends the connection by which opened files ask.
type endFiles struct {
	OpenedFiles
	end func()
}

// Close closes the files, too.
func (e endFiles) Close() error {
	err := e.OpenedFiles.Close()
	e.end()
	return err
}

// openJobFiles opens the directories of a task's job.
func (a *Agent) openJobFiles(ctx context.Context, w *taskRun) (OpenedFiles, error) {
	if a.Vaults.Files == nil {
		return nil, errors.New("this host does not reach the job's files")
	}
	ask, end := a.askFiles(w)
	opened, err := a.Vaults.Files.Open(ctx, w.task, ask)
	if err != nil {
		end()
		return nil, err
	}
	return endFiles{opened, end}, nil
}

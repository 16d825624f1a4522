package fleet

// DeviceKind says what a device is for.
type DeviceKind string

// The kinds of devices that hosts list.
const (
	NetDevice   DeviceKind = "net" // a network card, or a virtual function of one
	GPUDevice   DeviceKind = "gpu" // a display controller or another accelerator
	OtherDevice DeviceKind = "pci" // another one that is reserved for guests: it is bound to vfio-pci
)

// Device is a PCI function of a host that could be given to one guest alone.
type Device struct {
	Address   string     `json:"address"` // on the bus, as 0000:03:10.0
	Kind      DeviceKind `json:"kind"`
	ID        string     `json:"id"`                  // vendor and device, as 8086:1520
	Driver    string     `json:"driver,omitempty"`    // of the host's kernel; empty: none
	Interface string     `json:"interface,omitempty"` // of the host, that it is now
	Of        string     `json:"of,omitempty"`        // the card of which it is a virtual function
	Functions int        `json:"functions,omitempty"` // how many virtual functions it has now
	Most      int        `json:"most,omitempty"`      // how many it could have; 0: it is no card with virtual functions
	Group     string     `json:"group,omitempty"`     // its IOMMU group; empty: it has none
	Trouble   string     `json:"trouble,omitempty"`   // why no guest could have it as it is, for people; empty: one could
}
